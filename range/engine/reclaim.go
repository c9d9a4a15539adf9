package engine

const (
	// Tables are merged for what is deleted in them when that is minGarbageBytes and
	// a garbagePart of what is in use: so what is rewritten stays in proportion to
	// what is freed, and what the engine takes to what is in it.
	minGarbageBytes = 64 << 20
	garbagePart     = 4
	// flushLooks is how many looks there are at least between two flushes for the
	// sake of what was removed, unless room is short.
	flushLooks = 30
)

// Reclaimer decides when the tables are merged so that what compactions of the
// keyspace have removed becomes free. The engine by itself merges a level when it
// is full: what is deleted in a store that does not grow would stay for ever.
// It belongs to one goroutine.
type Reclaimer struct {
	// left is the garbage that the last merge could not free: an estimate that is
	// wrong, or what somebody still reads.
	left int64
	// flushed is up to which compaction the deletions are in tables, looks how often
	// it was looked since.
	flushed int64
	looks   int
}

// NewReclaimer returns a Reclaimer for an engine that was just opened.
func NewReclaimer() *Reclaimer { return &Reclaimer{looks: flushLooks} }

// WantsFlush looks whether the engine should be flushed, given up to which
// compaction of the keyspace all is removed: what is deleted is known of tables only,
// and a small deletion may hide a large value. low: room is short.
func (r *Reclaimer) WantsFlush(removed int64, low bool) bool {
	r.looks++
	return removed > r.flushed && (low || r.looks > flushLooks)
}

// Flushed notes a flush, before which all was removed up to a compaction.
func (r *Reclaimer) Flushed(removed int64) { r.flushed, r.looks = removed, 0 }

// WantsMerge says whether the tables should be merged now.
func (r *Reclaimer) WantsMerge(s Size) bool {
	r.left = min(r.left, s.Garbage)
	return s.Garbage-r.left >= max(minGarbageBytes, s.InUse/garbagePart)
}

// Merged notes what is left after a merge.
func (r *Reclaimer) Merged(s Size) { r.left = s.Garbage }

package mvcc

// MaxEffectsBytes is the most that the effects of one revision may weigh, those
// on all ranges together: Evaluate refuses a request beyond it with ErrTooLarge,
// before a revision is granted. Everything that carries, stores or stages effects
// rests on it: an entry of a range's Raft log, an entry of the meta log and its
// rows (a protobuf message has 2 GiB at most), a batch of the engine (4 GiB, with
// what else is in it). A single put of the largest --max-request-bytes is within.
const MaxEffectsBytes = 1 << 30

// What an effect may weigh beside its key and value. The weight is not below the
// size of the encoded effect, nor of the rows that Apply stages for it.
const (
	effectOverheadBytes = 256
	// effectKeyCopies: in the version row every byte may be escaped; the event has
	// the key, and so have two rows of the lease index.
	effectKeyCopies = 5
)

// weight is what the effect counts against MaxEffectsBytes.
func (e *Effect) weight() int64 {
	return effectOverheadBytes + effectKeyCopies*int64(len(e.Key)) + int64(len(e.Value)) + int64(len(e.End))
}

// EffectsWeight returns what effects count against MaxEffectsBytes: an upper bound
// of the bytes that they take in a log and, each log by itself, in the batch that
// applies them.
func EffectsWeight(effs []Effect) (n int64) {
	for i := range effs {
		n += effs[i].weight()
	}
	return n
}

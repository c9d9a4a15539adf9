package mvcc

import (
	"bytes"
	"errors"
	"fmt"
	"sort"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// halfLimits bound the work of HalfKey.
type halfLimits struct {
	// rows and bytes of live keys and values that are read to find the middle
	// exactly. A range with more is halved by estimates.
	rows, bytes int64
	// probe is how many keys, live or not, a look for the next live one steps over.
	probe int64
	// steps inside a run of keys, each of which asks the engine for a size.
	steps int
	// grain is the part of the range, one in so many, that is not cut any finer.
	grain float64
}

var defaultHalfLimits = halfLimits{rows: 16 << 10, bytes: 64 << 20, probe: 1024, steps: 512, grain: 64}

// HalfKey returns a key that halves [start, end) by size, nil if fewer than two
// keys live in it; a nil end is the end of the keyspace. Live keys lie on both
// sides of it. What it costs does not depend on how much the span holds: it reads a
// small one; of a large one it asks the engine for the sizes of parts, of which the
// superseded versions are part, and the counts for the numbers of keys.
func (s *Store) HalfKey(start, end []byte) ([]byte, error) {
	key, _, err := s.halfKey(start, end, defaultHalfLimits)
	return key, err
}

// halfKey says too how many keys it has looked at, live or not.
func (s *Store) halfKey(start, end []byte, limits halfLimits) (key []byte, looked int64, err error) {
	v, err := s.Snapshot(latestRevision)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	if start == nil {
		start = []byte{} // nil is the end of the keyspace where a span ends
	}
	h := &half{s: s, v: v, start: start, end: end, limits: limits}
	var all sizes
	err = h.scan(start, end, ScanOptions{Budget: &Budget{Rows: limits.rows, Bytes: limits.bytes}}, func(kv *mvccpb.KeyValue) bool {
		all.add(kv.Key, len(kv.Key)+len(kv.Value))
		return true
	})
	switch {
	case err == nil:
		return all.half(), h.looked, nil
	case errors.Is(err, ErrTooWide):
		key, err = h.estimate()
	}
	return key, h.looked, err
}

// half finds the middle of a span by estimates.
type half struct {
	s          *Store
	v          *Snapshot
	start, end []byte
	limits     halfLimits
	looked     int64

	// keys live in the span. unflushed is the most bytes that sizes of the engine
	// lack: they are taken as spread evenly over the keys.
	keys      int64
	unflushed float64
}

// scan is Scan, counted.
func (h *half) scan(start, end []byte, opt ScanOptions, fn func(*mvccpb.KeyValue) bool) error {
	if opt.Budget == nil {
		return h.v.Scan(start, end, opt, func(kv *mvccpb.KeyValue) (bool, error) {
			h.looked++
			return fn(kv), nil
		})
	}
	rows := opt.Budget.Rows
	err := h.v.Scan(start, end, opt, func(kv *mvccpb.KeyValue) (bool, error) { return fn(kv), nil })
	h.looked += rows - opt.Budget.Rows
	return err
}

func (h *half) estimate() ([]byte, error) {
	var err error
	if h.keys, err = h.count(h.end); err != nil || h.keys < 2 {
		return nil, err
	}
	h.unflushed = float64(h.s.db.Metrics().MemTable.Size)
	total, err := h.weight(h.end)
	if err != nil {
		return nil, err
	}
	lo, hi, err := h.search(h.weight, total/2)
	if err != nil {
		return nil, err
	}
	nearest, other, err := h.searchRun(lo, hi, total)
	if err != nil {
		return nil, err
	}
	for _, key := range [][]byte{nearest, other} {
		if key, err := h.boundary(key); key != nil || err != nil {
			return key, err
		}
	}
	return h.byCounts()
}

// count returns the number of live keys in [start, key).
func (h *half) count(key []byte) (int64, error) { return h.s.count(h.start, key, latestRevision) }

// weight is about the bytes in [start, key).
func (h *half) weight(key []byte) (float64, error) {
	keys, err := h.count(key)
	if err != nil {
		return 0, err
	}
	disk, err := h.disk(h.start, key)
	return disk + h.unflushed*float64(keys)/float64(h.keys), err
}

// disk is about the bytes that [start, end) has in files.
func (h *half) disk(start, end []byte) (float64, error) {
	if end != nil && bytes.Compare(start, end) >= 0 {
		return 0, nil
	}
	n, err := h.s.db.EstimateDiskUsage(VersionSpan(start, end))
	if err != nil {
		return 0, fmt.Errorf("mvcc: size of a span: %w", err)
	}
	return float64(n), nil
}

// search returns the run [lo, hi) of the counts in which before(key) passes the
// target: first among pages of runs, then among the runs of one.
func (h *half) search(before func([]byte) (float64, error), target float64) (lo, hi []byte, err error) {
	lo, hi = h.start, h.end
	for _, pages := range []bool{true, false} {
		starts := h.s.counts.Starts(lo, hi, pages)
		i := sort.Search(len(starts), func(i int) bool {
			if err != nil {
				return true
			}
			var w float64
			w, err = before(starts[i])
			return w >= target
		})
		if err != nil {
			return nil, nil, err
		}
		if i < len(starts) {
			hi = starts[i]
		}
		if i > 0 {
			lo = starts[i-1]
		}
	}
	return lo, hi, nil
}

// searchRun goes on inside of the run [lo, hi) if it has much of the range, as one
// with few large values has: at keys that need not exist. It returns the ends of the
// part that is left, first the one nearer to the middle.
func (h *half) searchRun(lo, hi []byte, total float64) (nearest, other []byte, err error) {
	// Within the run the files alone count: to count its keys is to read them.
	before, err := h.weight(lo)
	if err != nil {
		return nil, nil, err
	}
	after, err := h.weight(hi)
	if err != nil {
		return nil, nil, err
	}
	// Keys have long beginnings in common, which are then not searched for.
	first, err := h.firstLive(lo, hi)
	if err != nil {
		return nil, nil, err
	}
	if first != nil {
		dead, err := h.disk(lo, first)
		if err != nil {
			return nil, nil, err
		}
		lo, before = first, before+dead
	}
	for range h.limits.steps {
		inside, err := h.disk(lo, hi)
		if err != nil {
			return nil, nil, err
		}
		middle := between(lo, hi)
		if inside <= total/h.limits.grain || middle == nil {
			break
		}
		left, err := h.disk(lo, middle)
		if err != nil {
			return nil, nil, err
		}
		if before+left < total/2 {
			lo, before = middle, before+left
		} else {
			hi, after = middle, before+left
		}
	}
	if total/2-before < after-total/2 {
		return lo, hi, nil
	}
	return hi, lo, nil
}

// boundary returns a short key that parts the live keys as key does, nil if all of
// them are on one side, as far as a short look can tell.
func (h *half) boundary(key []byte) ([]byte, error) {
	if key == nil || bytes.Compare(key, h.start) <= 0 || h.end != nil && bytes.Compare(key, h.end) >= 0 {
		return nil, nil
	}
	first, err := h.firstLive(h.start, key)
	if first == nil || err != nil {
		return nil, err
	}
	next, err := h.firstLive(key, h.end)
	if next == nil || err != nil {
		return nil, err
	}
	n := 0
	for n < len(key) && key[n] == next[n] { // next is not below key
		n++
	}
	return next[:min(n+1, max(len(key), n))], nil
}

// firstLive returns the first live key in [start, end), nil if a short look finds
// none. The caller owns it.
func (h *half) firstLive(start, end []byte) (key []byte, err error) {
	opt := ScanOptions{KeysOnly: true, Budget: &Budget{Rows: h.limits.probe, Bytes: 1 << 40}}
	err = h.scan(start, end, opt, func(kv *mvccpb.KeyValue) bool {
		key = bytes.Clone(kv.Key)
		return false
	})
	if errors.Is(err, ErrTooWide) {
		err = nil
	}
	return key, err
}

// byCounts halves the range by the number of its keys, where sizes lead to a place
// without live ones. There are two at least.
func (h *half) byCounts() ([]byte, error) {
	lo, hi, err := h.search(func(key []byte) (float64, error) {
		n, err := h.count(key)
		return float64(n), err
	}, float64(h.keys)/2)
	if err != nil {
		return nil, err
	}
	for _, key := range [][]byte{lo, hi} {
		if key == nil || bytes.Compare(key, h.start) <= 0 || h.end != nil && bytes.Compare(key, h.end) >= 0 {
			continue
		}
		if n, err := h.count(key); err != nil || n > 0 && n < h.keys {
			return bytes.Clone(key), err
		}
	}
	// All of them are in one run.
	var all sizes
	err = h.scan(lo, hi, ScanOptions{KeysOnly: true}, func(kv *mvccpb.KeyValue) bool {
		all.add(kv.Key, 1)
		return true
	})
	return all.half(), err
}

// between returns a short key above lo and below hi, near the middle of what a
// byte can tell apart; hi nil is the end of the keyspace. Nil if there is none.
func between(lo, hi []byte) []byte {
	const end = 257 // above each digit: 0 where a key has ended, else the byte plus one
	digit := func(key []byte, i int) int {
		if i < len(key) {
			return int(key[i]) + 1
		}
		return 0
	}
	var key []byte
	above, below := false, hi == nil // key is above lo, below hi, whatever follows
	for i := 0; ; i++ {
		a, b := 0, end
		if !above {
			a = digit(lo, i)
		}
		if !below {
			b = digit(hi, i)
		}
		switch {
		case above && b > 0:
			// The key may end here.
			if m := b / 2; m > 0 {
				key = append(key, byte(m-1))
			}
			return key
		case above: // hi has ended: it is what key is
			return nil
		case b-a >= 2:
			return append(key, byte((a+b)/2-1))
		case a == b:
			key = append(key, byte(a-1))
		case a == 0: // lo has ended, and hi goes on with a zero
			key = append(key, 0)
			above = true
		default:
			key = append(key, byte(a-1))
			below = true
		}
	}
}

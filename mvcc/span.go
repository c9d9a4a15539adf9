package mvcc

import (
	"bytes"
	"fmt"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// isWide says whether a delete of an interval becomes the deletion of a span.
func (e *evaluator) isWide(v View, d *pb.DeleteRangeRequest, start, end []byte) (bool, error) {
	if e.env.SpanKeys == 0 || len(d.GetRangeEnd()) == 0 || emptyInterval(start, end) {
		return false, nil
	}
	n, err := v.Count(start, end)
	return err == nil && e.deleted+n > e.env.SpanKeys, err
}

// deleteSpan deletes all keys of [start, end) on v, the state so far. What the
// request has touched before is deleted key by key, so that a span never holds
// what is of its own revision and came before it: the deletion of a span ends
// everything older than its revision, and nothing else.
func (e *evaluator) deleteSpan(v View, d *pb.DeleteRangeRequest, start, end []byte, resp *pb.DeleteRangeResponse) error {
	if d.GetPrevKv() {
		err := v.Scan(start, end, ScanOptions{Budget: e.env.Budget}, func(kv *mvccpb.KeyValue) (bool, error) {
			if err := hold(e.env.Response, kv); err != nil {
				return false, err
			}
			resp.PrevKvs = append(resp.PrevKvs, kv)
			return true, nil
		})
		if err != nil {
			return err
		}
	}
	var own [][]byte
	var spans []Effect
	for _, eff := range e.result.Effects {
		switch {
		case eff.IsSpan():
			spans = append(spans, eff)
		case bytes.Compare(eff.Key, start) >= 0 && (end == nil || bytes.Compare(eff.Key, end) < 0):
			own = append(own, eff.Key)
		}
	}
	slices.SortFunc(own, bytes.Compare)
	own = slices.CompactFunc(own, bytes.Equal)
	slices.SortFunc(spans, func(a, b Effect) int { return bytes.Compare(a.Key, b.Key) })
	before := e.sub
	for _, key := range own {
		if err := e.deleteGaps(start, key, spans); err != nil {
			return err
		}
		h, err := readHead(v, key)
		if err != nil {
			return err
		}
		if h.version > 0 {
			if err := e.delete(key, h); err != nil {
				return err
			}
		}
		start = append(bytes.Clone(key), 0)
	}
	if err := e.deleteGaps(start, end, spans); err != nil {
		return err
	}
	resp.Deleted = int64(e.sub - before)
	return nil
}

// deleteGaps deletes what of [start, end) is in none of the spans, which are in key
// order and apart. The request has touched nothing there.
func (e *evaluator) deleteGaps(start, end []byte, spans []Effect) error {
	gap := func(start, end []byte) error {
		if emptyInterval(start, end) {
			return nil
		}
		n, err := e.base.Count(start, end)
		if err != nil || n == 0 {
			return err
		}
		return e.add(Effect{Key: bytes.Clone(start), End: bytes.Clone(end), Sub: e.sub, Tombstone: true, Count: n})
	}
	for i := range spans {
		s := &spans[i]
		if s.End != nil && bytes.Compare(s.End, start) <= 0 {
			continue
		}
		if end != nil && bytes.Compare(s.Key, end) >= 0 {
			break
		}
		if err := gap(start, s.Key); err != nil {
			return err
		}
		if s.End == nil {
			return nil
		}
		if bytes.Compare(s.End, start) > 0 {
			start = s.End
		}
	}
	return gap(start, end)
}

// HasSpan says whether a span is deleted. Before such effects are applied, all that was
// applied to the range is committed.
func HasSpan(effs []Effect) bool {
	return slices.ContainsFunc(effs, func(e Effect) bool { return e.IsSpan() })
}

// MayHaveSpan is HasSpan for effects that are encoded.
func MayHaveSpan(encoded []byte) bool { return len(encoded) > 0 && encoded[0] == spanEffectsFormat }

// CutSpans cuts deletions of spans at the keys cuts, which ascend, and returns the
// effects in the same order, with what each part ends in the view that they were
// evaluated on. So the effects can be given to the ranges that begin there.
func CutSpans(v View, effs []Effect, cuts [][]byte) ([]Effect, error) {
	if !HasSpan(effs) {
		return effs, nil
	}
	var out []Effect
	for _, e := range effs {
		if !e.IsSpan() {
			out = append(out, e)
			continue
		}
		left := e.Count
		for start, sub := e.Key, e.Sub; ; {
			part := Effect{Key: start, End: e.End, Sub: sub, Tombstone: true}
			// The first cut above start.
			i, found := slices.BinarySearchFunc(cuts, start, bytes.Compare)
			if found {
				i++
			}
			last := i == len(cuts) || e.End != nil && bytes.Compare(cuts[i], e.End) >= 0
			if last {
				part.Count = left
			} else {
				part.End = cuts[i]
				var err error
				if part.Count, err = v.Count(part.Key, part.End); err != nil {
					return nil, err
				}
			}
			if left -= part.Count; left < 0 {
				return nil, fmt.Errorf("mvcc: the parts of a span have %d keys more than it has", -left)
			}
			if part.Count > 0 {
				out = append(out, part)
			}
			if last {
				break
			}
			start, sub = part.End, sub+uint32(part.Count)
		}
	}
	return out, nil
}

package mvcc

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/google/btree"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

const overlayDegree = 16

// Overlay holds the effects of a leader's log that are not applied yet, at
// their revisions, to be laid over the applied state. It belongs to one replica
// and one goroutine; a view over it is good until the overlay changes.
type Overlay struct {
	items *btree.BTreeG[overlayItem]
	spans []overlaySpan  // deletions of spans, in the order of revisions
	queue []overlayWrite // in the order of revisions
}

type overlayWrite struct {
	rev  int64
	effs []Effect
}

// overlayItem is a version of a key. Items sort as version keys do: by key,
// the newest first.
type overlayItem struct {
	key []byte
	rev int64
	sub uint32
	eff *Effect
}

// overlaySpan is the deletion of a span: every version of a key in it that is older
// than rev is dead.
type overlaySpan struct {
	rev int64
	eff *Effect
}

func (s *overlaySpan) contains(key []byte) bool {
	return bytes.Compare(s.eff.Key, key) <= 0 && (s.eff.End == nil || bytes.Compare(key, s.eff.End) < 0)
}

func (a overlayItem) less(b overlayItem) bool {
	if c := bytes.Compare(a.key, b.key); c != 0 {
		return c < 0
	}
	if a.rev != b.rev {
		return a.rev > b.rev
	}
	return a.sub > b.sub
}

// NewOverlay returns an empty overlay.
func NewOverlay() *Overlay {
	return &Overlay{items: btree.NewG(overlayDegree, overlayItem.less)}
}

// Add lays the effects of a revision, larger than all before it, on top. The
// overlay shares them: nobody changes them any more.
func (o *Overlay) Add(rev int64, effs []Effect) {
	if n := len(o.queue); n > 0 && rev <= o.queue[n-1].rev {
		panic(fmt.Sprintf("mvcc: overlay gets revision %d after %d", rev, o.queue[n-1].rev))
	}
	if len(effs) == 0 {
		return
	}
	o.queue = append(o.queue, overlayWrite{rev, effs})
	o.insert(rev, effs)
}

func (o *Overlay) insert(rev int64, effs []Effect) {
	for i := range effs {
		e := &effs[i]
		if e.IsSpan() {
			o.spans = append(o.spans, overlaySpan{rev, e})
			continue
		}
		o.items.ReplaceOrInsert(overlayItem{e.Key, rev, e.Sub, e})
	}
}

// Applied drops all at or below rev: those who look see it in the applied state
// from now on. Call it after the batch is committed.
func (o *Overlay) Applied(rev int64) {
	n := 0
	for ; n < len(o.queue) && o.queue[n].rev <= rev; n++ {
		w := o.queue[n]
		for i := range w.effs {
			if w.effs[i].IsSpan() {
				continue
			}
			o.items.Delete(overlayItem{key: w.effs[i].Key, rev: w.rev, sub: w.effs[i].Sub})
		}
		o.queue[n] = overlayWrite{}
	}
	if o.queue = o.queue[n:]; len(o.queue) == 0 {
		o.queue = nil // else its array would only ever grow at the end
	}
	if len(o.spans) > 0 {
		o.spans = slices.DeleteFunc(o.spans, func(s overlaySpan) bool { return s.rev <= rev })
	}
}

// Reset drops everything, as when a term ends.
func (o *Overlay) Reset() { *o = *NewOverlay() }

// Len returns the number of revisions that are not applied.
func (o *Overlay) Len() int { return len(o.queue) }

// Over returns base with the overlay on top. What of the overlay is applied in
// base already does no harm.
func (o *Overlay) Over(base View) View { return &overlayView{o: o, base: base, rev: base.Revision()} }

// overlayView is an overlay up to a revision over a view at that revision.
type overlayView struct {
	o    *Overlay
	base View
	rev  int64

	// own is set when the overlay holds the effects of the write under
	// evaluation, at ownRevision: they are on top of whatever base is, and each
	// key-value made of one is reported, to learn its revision in the end.
	own func(*mvccpb.KeyValue)
}

// ownRevision stands for the revision of the write under evaluation.
const ownRevision int64 = math.MaxInt64

// Revision implements View.
func (v *overlayView) Revision() int64 { return v.base.Revision() }

// atOrAfter returns the newest visible item of the first key that has one, from
// the pivot on.
func (v *overlayView) atOrAfter(pivot overlayItem) (found overlayItem, ok bool) {
	v.o.items.AscendGreaterOrEqual(pivot, func(it overlayItem) bool {
		if it.rev <= v.rev {
			found, ok = it, true
		}
		return !ok
	})
	return found, ok
}

// ended says whether a version of key that was made at rev is dead, for its span
// was deleted.
func (v *overlayView) ended(key []byte, rev int64) bool {
	for i := range v.o.spans {
		if s := &v.o.spans[i]; rev < s.rev && s.rev <= v.rev && s.contains(key) {
			return true
		}
	}
	return false
}

// lookup returns what the overlay has of a key, nil if nothing.
func (v *overlayView) lookup(key []byte) (*Effect, int64) {
	if v.o.items.Len() == 0 {
		return nil, 0
	}
	it, ok := v.atOrAfter(overlayItem{key: key, rev: v.rev, sub: math.MaxUint32})
	if !ok || !bytes.Equal(it.key, key) {
		return nil, 0
	}
	if len(v.o.spans) > 0 && v.ended(key, it.rev) {
		return &endedEffect, it.rev
	}
	return it.eff, it.rev
}

// endedEffect stands for that of a key in a span that was deleted.
var endedEffect = Effect{Tombstone: true}

// keyValue makes the key-value of a live effect; it shares its bytes.
func (v *overlayView) keyValue(e *Effect, rev int64, keysOnly bool) *mvccpb.KeyValue {
	kv := EventOf(*e, rev).Kv
	if keysOnly {
		kv.Value = nil
	}
	if v.own != nil {
		v.own(kv)
	}
	return kv
}

// Get implements View.
func (v *overlayView) Get(key []byte) (*mvccpb.KeyValue, error) {
	e, rev := v.lookup(key)
	switch {
	case e == nil:
		kv, err := v.base.Get(key)
		if kv != nil && v.ended(key, kv.ModRevision) {
			kv = nil
		}
		return kv, err
	case e.Tombstone:
		return nil, nil
	}
	return v.keyValue(e, rev, false), nil
}

func (v *overlayView) head(key []byte) (head, error) {
	e, rev := v.lookup(key)
	switch {
	case e == nil:
		h, err := readHead(v.base, key)
		if h.version > 0 && v.ended(key, h.modRevision) {
			h = head{}
		}
		return h, err
	case e.Tombstone:
		return head{}, nil
	}
	h := head{e.CreateRevision, rev, e.Version, e.Lease, Place{rev, e.Sub}}
	if h.createRevision == 0 {
		h.createRevision = rev
	}
	if rev == ownRevision {
		h.place = Place{} // not known before it is granted
	}
	return h, nil
}

// Scan implements View.
func (v *overlayView) Scan(start, end []byte, opt ScanOptions, fn func(*mvccpb.KeyValue) (bool, error)) error {
	if emptyInterval(start, end) {
		return nil
	}
	if v.o.items.Len() == 0 && len(v.o.spans) == 0 {
		return v.base.Scan(start, end, opt, fn)
	}
	next := func(pivot overlayItem) (overlayItem, bool) {
		it, ok := v.atOrAfter(pivot)
		return it, ok && (end == nil || bytes.Compare(it.key, end) < 0)
	}
	// it is the overlay's next key, if ok.
	it, ok := next(overlayItem{key: start, rev: math.MaxInt64, sub: math.MaxUint32})
	take := func() (more bool, err error) {
		if err := opt.step(); err != nil {
			return false, err
		}
		e, rev := it.eff, it.rev
		dead := e.Tombstone || v.ended(it.key, rev)
		it, ok = next(overlayItem{key: it.key, rev: -1})
		if dead {
			return true, opt.dead()
		}
		kv := v.keyValue(e, rev, opt.KeysOnly)
		opt.live(kv)
		return fn(kv)
	}
	stopped := false
	err := v.base.Scan(start, end, opt, func(kv *mvccpb.KeyValue) (bool, error) {
		for ok && bytes.Compare(it.key, kv.Key) < 0 {
			if more, err := take(); err != nil || !more {
				stopped = true
				return false, err
			}
		}
		more := true
		var err error
		switch {
		case ok && bytes.Equal(it.key, kv.Key):
			more, err = take()
		case v.ended(kv.Key, kv.ModRevision):
			err = opt.dead()
		default:
			more, err = fn(kv)
		}
		stopped = !more
		return more, err
	})
	for err == nil && !stopped && ok {
		var more bool
		more, err = take()
		stopped = !more
	}
	return err
}

// Count implements View.
func (v *overlayView) Count(start, end []byte) (int64, error) {
	base := v.base
	if v.own == nil && len(v.o.queue) > 0 && v.o.queue[0].rev <= base.Revision() {
		// Counts go ahead of what is committed, so part of the overlay may be
		// counted already. Count where nothing of it is.
		before, err := base.At(v.o.queue[0].rev - 1)
		switch {
		case err == nil:
			base = before
		case !errors.Is(err, ErrCompacted):
			return 0, err
		}
		// Compacted means that the keyspace has forgotten a revision which this
		// replica has not applied: nothing of the overlay can be in base.
	}
	return v.countUpTo(base, start, end, v.rev)
}

// countUpTo counts what lives in base and the revisions of the overlay up to one.
func (v *overlayView) countUpTo(base View, start, end []byte, upTo int64) (int64, error) {
	n, err := base.Count(start, end)
	if err != nil || emptyInterval(start, end) {
		return n, err
	}
	for i := range v.o.spans {
		s := &v.o.spans[i]
		if s.rev > upTo {
			break
		}
		lo, hi := start, end
		if bytes.Compare(lo, s.eff.Key) < 0 {
			lo = s.eff.Key
		}
		if hi == nil || s.eff.End != nil && bytes.Compare(s.eff.End, hi) < 0 {
			hi = s.eff.End
		}
		if emptyInterval(lo, hi) {
			continue
		}
		ended, err := v.countUpTo(base, lo, hi, s.rev-1)
		if err != nil {
			return 0, err
		}
		n -= ended
	}
	v.o.items.AscendGreaterOrEqual(overlayItem{key: start, rev: math.MaxInt64, sub: math.MaxUint32}, func(it overlayItem) bool {
		switch {
		case end != nil && bytes.Compare(it.key, end) >= 0:
			return false
		case it.rev > upTo:
		case it.eff.Tombstone:
			n--
		case it.eff.Version == 1:
			n++
		}
		return true
	})
	return n, nil
}

// At implements View.
func (v *overlayView) At(rev int64) (View, error) {
	base, err := v.base.At(rev)
	if err != nil || v.own != nil {
		return base, err
	}
	return &overlayView{o: v.o, base: base, rev: rev}, nil
}

package mvcc

import (
	"bytes"
	"errors"
	"fmt"
	"math"

	"github.com/google/btree"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

const overlayDegree = 16

// Overlay holds the effects of a leader's log that are not applied yet, at
// their revisions, to be laid over the applied state. It belongs to one replica
// and one goroutine; a view over it is good until the overlay changes.
type Overlay struct {
	items *btree.BTreeG[overlayItem]
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
			o.items.Delete(overlayItem{key: w.effs[i].Key, rev: w.rev, sub: w.effs[i].Sub})
		}
		o.queue[n] = overlayWrite{}
	}
	if o.queue = o.queue[n:]; len(o.queue) == 0 {
		o.queue = nil // else its array would only ever grow at the end
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

func (v *overlayView) lookup(key []byte) (*Effect, int64) {
	if v.o.items.Len() == 0 {
		return nil, 0
	}
	it, ok := v.atOrAfter(overlayItem{key: key, rev: v.rev, sub: math.MaxUint32})
	if !ok || !bytes.Equal(it.key, key) {
		return nil, 0
	}
	return it.eff, it.rev
}

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
		return v.base.Get(key)
	case e.Tombstone:
		return nil, nil
	}
	return v.keyValue(e, rev, false), nil
}

func (v *overlayView) head(key []byte) (head, error) {
	e, rev := v.lookup(key)
	switch {
	case e == nil:
		return readHead(v.base, key)
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
	if v.o.items.Len() == 0 {
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
		it, ok = next(overlayItem{key: it.key, rev: -1})
		if e.Tombstone {
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
		var more bool
		var err error
		if ok && bytes.Equal(it.key, kv.Key) {
			more, err = take()
		} else {
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
	n, err := base.Count(start, end)
	if err != nil || emptyInterval(start, end) {
		return n, err
	}
	v.o.items.AscendGreaterOrEqual(overlayItem{key: start, rev: math.MaxInt64, sub: math.MaxUint32}, func(it overlayItem) bool {
		switch {
		case end != nil && bytes.Compare(it.key, end) >= 0:
			return false
		case it.rev > v.rev:
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

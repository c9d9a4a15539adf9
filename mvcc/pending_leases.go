package mvcc

import (
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// pendingLeases keeps the rows of the lease index of keys that are attached to a lease
// again while their deletion is pending. Such a row may be staged after a step has
// found that it can go, and committed before the step removes it.
type pendingLeases struct {
	mu sync.Mutex // held by a step from its last look to its commit
	// attached are rows that Apply has staged since something is pending. They are
	// few: only of keys in a span that is pending.
	attached map[string]struct{}
}

// attaching takes note of an effect that attaches a key to a lease, before its batch is
// committed.
func (p *pendings) attaching(rev int64, e *Effect) {
	list := p.list.Load()
	if list == nil || e.Lease == 0 {
		return
	}
	if !list.killsKey(e.Key, 0, rev-1) {
		return
	}
	row := appendLeaseKey(nil, e.Lease, e.Key)
	l := &p.leases
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.attached == nil {
		l.attached = make(map[string]struct{})
	}
	l.attached[string(row)] = struct{}{}
}

// commit commits a step that removes rows, but for those that were staged again. What
// is staged from now on is committed later, so it stays.
func (l *pendingLeases) commit(b *pebble.Batch, rows [][]byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, row := range rows {
		if _, again := l.attached[string(row)]; again {
			continue
		}
		if err := b.Delete(row, nil); err != nil {
			return err
		}
	}
	return b.Commit(pebble.NoSync)
}

// clear is called when nothing is pending.
func (l *pendingLeases) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.attached = nil
}

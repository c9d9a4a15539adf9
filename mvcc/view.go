package mvcc

import (
	"math"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// latestRevision is the revision of a view of the newest state.
const latestRevision int64 = math.MaxInt64

// View is the state of the keyspace, or of the part a node has, at one moment.
//
// Key-values it hands out belong to the caller for good, but their bytes may be
// shared: they are never modified, neither by the caller nor by the view.
type View interface {
	// Revision is the revision of the view; math.MaxInt64 for the newest state
	// of a leader, whose revision only the sequencer knows.
	Revision() int64
	// Get returns the key-value of a key, nil if the key is not live.
	Get(key []byte) (*mvccpb.KeyValue, error)
	// Scan visits the live keys of [start, end) in ascending order until fn
	// returns false or an error; a nil end is the end of the keyspace. fn may
	// use the view.
	Scan(start, end []byte, opt ScanOptions, fn func(*mvccpb.KeyValue) (more bool, err error)) error
	// Count returns the exact number of live keys in [start, end); a nil end is
	// the end of the keyspace. It never walks more than a run of keys at each
	// edge of the span.
	Count(start, end []byte) (int64, error)
	// At returns the state at a revision not above the view's, which lives as
	// long as the view. ErrCompacted if the revision is forgotten.
	At(rev int64) (View, error)
}

// OpenView is a view that holds something of the engine until it is closed.
type OpenView interface {
	View
	// Close releases it. It must not be used afterwards.
	Close() error
}

// ScanOptions say what a scan needs.
type ScanOptions struct {
	// KeysOnly leaves the values nil and does not read them. Lease, versions
	// and revisions are there.
	KeysOnly bool
	// Budget, if not nil, is charged for what the scan steps over and ends it
	// with ErrTooWide. Views of a leader's state and of snapshots know it.
	Budget *Budget
	// LiveIsFree charges for keys that are dead only: what is live is work that
	// has to be done anyway.
	LiveIsFree bool
}

// step charges for a key, before it is known to live.
func (o *ScanOptions) step() error {
	if o.LiveIsFree {
		return nil
	}
	return o.Budget.step()
}

// dead charges for a key that turned out to be dead.
func (o *ScanOptions) dead() error {
	if o.LiveIsFree {
		return o.Budget.step()
	}
	return nil
}

// live charges for what is read of a key.
func (o *ScanOptions) live(kv *mvccpb.KeyValue) {
	if !o.LiveIsFree {
		o.Budget.took(kv)
	}
}

// head is what a write must know of the key's present version.
type head struct {
	createRevision int64
	modRevision    int64
	version        int64 // 0: the key is not live
	lease          int64
	// place of the version, if the view knows it: views that make key-values only
	// do not.
	place Place
}

// headReader is a View that can tell the head of a key without making a
// key-value of it.
type headReader interface {
	head(key []byte) (head, error)
}

// readHead reads the head of a key from any view.
func readHead(v View, key []byte) (head, error) {
	if h, ok := v.(headReader); ok {
		return h.head(key)
	}
	kv, err := v.Get(key)
	if err != nil || kv == nil {
		return head{}, err
	}
	return headOf(kv), nil
}

// head of a live version at a place.
func (v *version) head(at Place) head {
	return head{v.createRevision, at.Revision, v.version, v.lease, at}
}

func headOf(kv *mvccpb.KeyValue) head {
	return head{createRevision: kv.CreateRevision, modRevision: kv.ModRevision, version: kv.Version, lease: kv.Lease}
}

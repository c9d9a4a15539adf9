package watch

import (
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hawser-kv/hawser/mvcc"
)

// The version before an event is read once for all watchers, but one that is
// much larger than the event is not kept with it: a slow stream holds the event,
// and counts the event only.
func TestLargePreviousVersionIsNotKept(t *testing.T) {
	for _, test := range []struct {
		name       string
		valueBytes int
		reads      int
	}{{"small", 100, 1}, {"large", 1 << 20, 2}} {
		e := newEvent(mvcc.Event{Delete: true, Revision: 9, Kv: &mvccpb.KeyValue{Key: []byte("k"), ModRevision: 9}})
		reads := 0
		for range 2 {
			kv, err := e.previousKV(func(key []byte, revision int64) (*mvccpb.KeyValue, error) {
				reads++
				return &mvccpb.KeyValue{Key: key, Value: make([]byte, test.valueBytes), ModRevision: revision}, nil
			})
			if err != nil || kv.ModRevision != 8 || len(kv.Value) != test.valueBytes {
				t.Errorf("%s: %v, %v", test.name, kv.ModRevision, err)
			}
		}
		if reads != test.reads {
			t.Errorf("%s: read %d times, want %d", test.name, reads, test.reads)
		}
		if held := e.previous.kv; held != nil && len(held.Value) > 2*e.size {
			t.Errorf("%s: an event of %d bytes keeps %d", test.name, e.size, len(held.Value))
		}
	}
}

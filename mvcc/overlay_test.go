package mvcc

import (
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

func listOf(t *testing.T, v View) string {
	t.Helper()
	var kvs []*mvccpb.KeyValue
	err := v.Scan(nil, nil, ScanOptions{}, func(kv *mvccpb.KeyValue) (bool, error) {
		kvs = append(kvs, kv)
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	n, err := v.Count(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d: %s", n, show(kvs...))
}

func TestOverlayLaysUnappliedRevisionsOverTheAppliedState(t *testing.T) {
	h := newHistory(t)
	h.put("a", "1")
	h.put("b", "1")
	o := NewOverlay()
	v := o.Over(h.s.Latest())
	writes := map[int64][]Effect{
		4: {{Key: []byte("a"), Tombstone: true}},
		5: {{Key: []byte("c"), Value: []byte("2"), Version: 1}, {Key: []byte("b"), Sub: 1, Value: []byte("2"), CreateRevision: 3, Version: 2}},
		7: {{Key: []byte("a"), Value: []byte("3"), Version: 1}},
	}
	for _, rev := range []int64{4, 5, 7} {
		o.Add(rev, writes[rev])
	}
	const all = "3: a=3@7/7#1 b=2@3/5#2 c=2@5/5#1"
	want(t, "newest", listOf(t, v), all)
	for rev, w := range map[int64]string{
		3: "2: a=1@2/2#1 b=1@3/3#1",
		4: "1: b=1@3/3#1",
		6: "2: b=2@3/5#2 c=2@5/5#1",
		7: all,
	} {
		at, err := v.At(rev)
		if err != nil {
			t.Fatal(err)
		}
		want(t, fmt.Sprint("at ", rev), listOf(t, at), w)
	}
	// What is applied and still laid over counts once.
	h.apply(4, writes[4])
	want(t, "one applied, not dropped", listOf(t, v), all)
	h.apply(5, writes[5])
	want(t, "applied, not dropped", listOf(t, v), all)
	o.Applied(5)
	want(t, "dropped", listOf(t, v), all)
	if o.Len() != 1 {
		t.Errorf("%d revisions left, want 1", o.Len())
	}
	o.Reset()
	want(t, "thrown away", listOf(t, v), "2: b=2@3/5#2 c=2@5/5#1")
}

func TestOverlayRefusesARevisionThatDoesNotGrow(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("it did not")
		}
	}()
	o := NewOverlay()
	o.Add(5, someEffects[:1])
	o.Add(5, someEffects[:1])
}

package replica_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/range/replica"
)

// A small request may make an entry that is much larger than others: one that
// keeps many large values. What the leader proposes it can read again, also after
// a start.
func TestALargeEntryIsRead(t *testing.T) {
	const ops, valueBytes = 46, 1500 << 10 // 67 MiB
	link := &instantLink{next: 2}
	n := &node{tb: t, id: 1, link: link, bigMemTable: true}
	link.node = n
	n.open()
	t.Cleanup(func() { n.close() })
	n.bootstrap(descriptor(1, "", "", 1, 1), 1)
	value := bytes.Repeat([]byte("v"), valueBytes)
	mustWrite(t, n.do(1, put("k", string(value))))
	// The API has a transaction keep the values of as many keys; here one is enough.
	txn := &pb.TxnRequest{}
	for range ops {
		p := &pb.PutRequest{Key: []byte("k"), IgnoreValue: true}
		txn.Success = append(txn.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: p}})
	}
	mustWrite(t, n.do(1, &mvcc.Request{Txn: txn}))
	n.crash(vfs.CrashCloneCfg{})
	n.store.Load(1)
	n.settle()
	mustWrite(t, n.do(1, put("after", "1")))
	if kv := n.keyValue("k"); kv == nil || kv.Version != 1+ops || !bytes.Equal(kv.Value, value) {
		t.Fatalf("version %d, %d bytes", kv.GetVersion(), len(kv.GetValue()))
	}
}

// What is too large for a log is refused before it takes a revision, and as a
// refusal that the proxy evaluates again: the state it rests on may not be
// committed. Writes behind it go on.
func TestTooLargeIsRefusedWithoutARevision(t *testing.T) {
	link := &instantLink{next: 2}
	n := &node{tb: t, id: 1, link: link, bigMemTable: true}
	link.node = n
	n.open()
	t.Cleanup(func() { n.close() })
	n.bootstrap(descriptor(1, "", "", 1, 1), 1)
	mustWrite(t, n.do(1, put("k", string(make([]byte, 1<<20)))))
	next := link.next
	// Some thousand puts that keep 1 MiB each, one after the other.
	txn := &pb.TxnRequest{}
	for i := range mvcc.MaxEffectsBytes>>20 + 1 {
		p := &pb.PutRequest{Key: []byte("k"), IgnoreValue: true, Lease: int64(i)}
		txn.Success = append(txn.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: p}})
	}
	res := n.do(1, &mvcc.Request{Txn: txn})
	if res == nil || !errors.Is(res.Err, mvcc.ErrTooLarge) || !res.NoEffect || !replica.NotApplied(res.Err) {
		t.Fatalf("a write of more than %d bytes: %+v", int64(mvcc.MaxEffectsBytes), res)
	}
	if link.next != next {
		t.Error("it took a revision")
	}
	mustWrite(t, n.do(1, put("k", "2")))
}

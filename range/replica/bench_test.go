package replica_test

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/range/replica"
)

// instantLink is a sequencer that answers at once, as one on the same node does.
type instantLink struct {
	node *node
	next int64
}

func (l *instantLink) Session() (uint64, uint64, bool) { return 1, 1, true }

func (l *instantLink) Send(m *placementpb.ToSequencer) {
	answer := &placementpb.FromSequencer{Epoch: 1, Session: 1}
	var id uint64
	switch b := m.Body.(type) {
	case *placementpb.ToSequencer_Register:
		id = b.Register.RangeId
		answer.Body = &placementpb.FromSequencer_Registered{Registered: &placementpb.Registered{RangeId: id, Term: b.Register.Term, R0: l.next - 1, Epoch: 1}}
	case *placementpb.ToSequencer_Grant:
		id = b.Grant.RangeId
		answer.Body = &placementpb.FromSequencer_Grant{Grant: &placementpb.Grant{
			RangeId: id, Term: b.Grant.Term, Seq: b.Grant.Seq, Count: b.Grant.Count, First: l.next}}
		l.next += int64(b.Grant.Count)
	default:
		return
	}
	l.node.store.Post(id, answer)
}

func benchNode(b *testing.B) *node {
	link := &instantLink{next: 2}
	n := &node{tb: b, id: 1, link: link, fs: vfs.NewMem(), bigMemTable: true}
	link.node = n
	n.open()
	b.Cleanup(n.close)
	n.bootstrap(descriptor(1, "", "", 1, 1), 1)
	n.store.Load(1)
	n.settle()
	return n
}

// BenchmarkPut is the cost of a put, all told (replica, Raft, mvcc, engine on
// memory), when 256 come in a pass: to new keys, to old keys, and all to one.
func BenchmarkPut(b *testing.B) {
	const perPass = 256
	for _, tc := range []struct {
		name string
		key  func(i int) string
	}{
		{"new", func(i int) string { return fmt.Sprintf("key-%012d", i) }},
		{"old", func(i int) string { return fmt.Sprintf("key-%06d", i*7919%10000) }},
		{"hot", func(int) string { return "key" }},
	} {
		b.Run(tc.name, func(b *testing.B) {
			n := benchNode(b)
			value := make([]byte, 128)
			answered := 0
			done := func(_ *mvcc.Result, r rangepb.WriteAnswer) {
				if r.Err != nil {
					b.Fatal(r.Err)
				}
				answered++
			}
			reqs := make([]*mvcc.Request, b.N)
			for i := range reqs {
				reqs[i] = put(tc.key(i), string(value))
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; {
				for range perPass {
					if i == b.N {
						break
					}
					n.store.Post(1, &replica.Write{Epoch: 1, Req: reqs[i], Done: done})
					i++
				}
				n.settle()
			}
			b.StopTimer()
			if answered != b.N {
				b.Fatalf("%d of %d answered", answered, b.N)
			}
			st := n.store.Stats()
			b.ReportMetric(float64(st.Syncs)/float64(b.N), "syncs/op")
		})
	}
}

package sequencer

import (
	"fmt"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-kv/hawser/placement/meta"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// benchmarkSequencer returns a serving S with ranges ranges, all open for node
// 1, session 1, term 1. Nothing but grants is left to do.
func benchmarkSequencer(b *testing.B, ranges int) *Sequencer {
	b.Helper()
	var boundaries [][]byte
	for i := 1; i < ranges; i++ {
		boundaries = append(boundaries, fmt.Appendf(nil, "%08d", i))
	}
	s := New(Config{
		Bootstrap: meta.NewBootstrap(1, boundaries, []*rangepb.Replica{{NodeId: 1, ReplicaId: 1}}),
	})
	s.SetSoleVoter(true)
	s.Lead(1, meta.New())
	benchmarkCommit(s)
	s.Receive(&placementpb.ToSequencer{ClusterId: 1, NodeId: 1, Session: 1,
		Body: &placementpb.ToSequencer_Subscribe{Subscribe: &placementpb.Subscribe{}}})
	for id := range ranges {
		s.Receive(&placementpb.ToSequencer{ClusterId: 1, NodeId: 1, Session: 1,
			Body: &placementpb.ToSequencer_Register{Register: &placementpb.Register{RangeId: uint64(id + 1), Epoch: 1, Term: 1}}})
	}
	benchmarkCommit(s)
	if st := s.Stats(); st.Open != ranges {
		b.Fatalf("%d of %d ranges open", st.Open, ranges)
	}
	return s
}

// benchmarkCommit applies all that S proposes at once.
func benchmarkCommit(s *Sequencer) {
	for {
		out := s.Ready()
		if out.Empty() {
			return
		}
		for _, cmd := range append([]*placementpb.MetaCommand(nil), out.Proposals...) {
			s.Applied(1, cmd)
		}
	}
}

// BenchmarkGrant counts write revisions, not messages: the target is 3,000,000
// a second on one core. Each iteration is one revision; the message of a batch
// is made once per batch, as a node would. The heap may grow by 128 MiB
// between collections, as that of a loaded server may (cmd/hawser): the
// benchmark's own is some megabytes and would be collected all the time, which is
// half of the cost then.
func BenchmarkGrant(b *testing.B) {
	defer debug.SetGCPercent(debug.SetGCPercent(3200)) // of a heap of 4 MiB
	for _, ranges := range []int{1, 1000} {
		for _, batch := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("ranges=%d/batch=%d", ranges, batch), func(b *testing.B) {
				s := benchmarkSequencer(b, ranges)
				b.ReportAllocs()
				granted, tick := 0, 0
				before := cpuSeconds(b)
				m := &placementpb.ToSequencer{ClusterId: 1, NodeId: 1, Session: 1}
				g := &placementpb.GrantRequest{Epoch: 1, Term: 1, Count: uint32(batch)}
				m.Body = &placementpb.ToSequencer_Grant{Grant: g}
				for b.Loop() {
					if granted%batch == 0 {
						g.RangeId = uint64(granted/batch%ranges) + 1
						s.Receive(m)
						benchmarkCommit(s)
					}
					granted++
					if tick++; tick == 1<<18 {
						tick = 0
						s.Tick()
					}
				}
				b.ReportMetric(float64(granted)/(cpuSeconds(b)-before), "grants/cpu-s")
			})
		}
	}
}

// cpuSeconds is the processor time used by the process: a rate per second of it
// does not depend on what else the machine does. It counts the collector, too.
func cpuSeconds(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// BenchmarkQueryNow is S's part of a read.
func BenchmarkQueryNow(b *testing.B) {
	for _, n := range []int{1, 4, 64} {
		b.Run(fmt.Sprintf("ranges=%d", n), func(b *testing.B) {
			s := benchmarkSequencer(b, 1000)
			var ranges []*placementpb.RangeEpoch
			for i := range n {
				ranges = append(ranges, &placementpb.RangeEpoch{RangeId: uint64(i*7 + 1), Epoch: 1})
			}
			marks := make([]int64, n)
			b.ReportAllocs()
			for b.Loop() {
				if _, _, ok := s.QueryNow(1, 1, ranges, marks); !ok {
					b.Fatal("not answered")
				}
			}
		})
	}
}

// BenchmarkLead is what a new S pays before it proposes its first raise.
func BenchmarkLead(b *testing.B) {
	for _, ranges := range []int{1000, 10000} {
		b.Run(fmt.Sprintf("ranges=%d", ranges), func(b *testing.B) {
			var boundaries [][]byte
			for i := 1; i < ranges; i++ {
				boundaries = append(boundaries, fmt.Appendf(nil, "%08d", i))
			}
			st := meta.New()
			cmd := &placementpb.MetaCommand{Epoch: 1, Command: &placementpb.MetaCommand_Bootstrap{
				Bootstrap: meta.NewBootstrap(1, boundaries, []*rangepb.Replica{{NodeId: 1, ReplicaId: 1}})}}
			if _, err := st.Apply(1, 1, cmd); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				s := New(Config{})
				s.Lead(2, st)
			}
		})
	}
}

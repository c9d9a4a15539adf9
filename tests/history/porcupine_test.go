package history

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

const checkLimit = 2 * time.Minute

// etcd does one request at a time and records them as if clients had asked for
// them at the same time.
type etcd struct {
	rng   *rand.Rand
	state *keyspace
	run   Run
	// now is the moment of the request that is done; busy is until when clients
	// wait for an answer.
	now   int64
	busy  map[int]int64
	value int
}

func newEtcd(seed uint64) *etcd {
	return &etcd{rng: rand.New(rand.NewPCG(seed, 7)), state: &keyspace{rev: 1}, busy: map[int]int64{}}
}

func (e *etcd) key() []byte { return fmt.Appendf(nil, "k%d", e.rng.IntN(12)) }

func (e *etcd) put() *pb.PutRequest {
	e.value++
	return &pb.PutRequest{Key: e.key(), Value: fmt.Appendf(nil, "v%d", e.value), PrevKv: e.rng.IntN(2) == 0}
}

func (e *etcd) request() *Op {
	o := &Op{}
	switch n := e.rng.IntN(20); {
	case n < 7:
		o.Put = e.put()
	case n < 9:
		o.Delete = &pb.DeleteRangeRequest{Key: e.key()}
	case n < 12:
		key := e.key()
		o.Txn = &pb.TxnRequest{
			Compare: []*pb.Compare{{Key: key, Target: pb.Compare_VERSION, TargetUnion: &pb.Compare_Version{Version: e.rng.Int64N(3)}}},
			Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: e.put()}}},
			Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: key}}}},
		}
	case n < 13:
		o.Compact = &pb.CompactionRequest{Revision: e.state.rev - e.rng.Int64N(12)}
	default:
		o.Range = &pb.RangeRequest{Key: e.key(), Serializable: e.rng.IntN(4) == 0}
		if e.rng.IntN(2) == 0 {
			o.Range.Key, o.Range.RangeEnd = []byte("k"), []byte("l")
		}
		if e.rng.IntN(4) == 0 {
			o.Range.Revision = max(1, e.state.rev+2-e.rng.Int64N(15))
		}
	}
	return o
}

// do does a request at the next revision.
func (e *etcd) do(o *Op) {
	s := e.state
	switch {
	case o.Compact != nil && o.Compact.Revision <= s.compacted,
		o.Range != nil && o.Range.Revision > 0 && o.Range.Revision < s.compacted:
		o.Outcome, o.Refusal = Refused, RefusedCompacted
		return
	case o.Range != nil && o.Range.Revision > s.rev:
		o.Outcome, o.Refusal = Refused, RefusedFuture
		return
	case o.Compact != nil:
		next := *s
		next.compacted = o.Compact.Revision
		e.state = &next
		o.Answer = &pb.CompactionResponse{Header: &pb.ResponseHeader{Revision: s.rev}}
		return
	case o.Range != nil && o.Range.Serializable && o.Range.Revision == 0:
		o.Answer, _ = apply(s, o, max(1, s.rev-e.rng.Int64N(5)))
		return
	}
	if answer, effects := apply(s, o, s.rev); len(effects) > 0 {
		e.state = s.write(s.rev+1, effects)
		e.run.Truth = append(e.run.Truth, effects...)
		o.Answer = answer
		return
	}
	o.Answer, _ = apply(s, o, s.rev)
}

func (e *etcd) step() {
	e.now += 100
	client := e.rng.IntN(6)
	call := max(e.now-1-e.rng.Int64N(300), e.busy[client]+1)
	if call >= e.now {
		return
	}
	o := e.request()
	o.Client, o.Call, o.Return = client, call, e.now+e.rng.Int64N(300)
	e.do(o)
	e.busy[client] = o.Return
	e.run.Ops = append(e.run.Ops, o)
}

// crash makes some answers get lost, some of the requests too, and leaves a gap.
func (e *etcd) crash() {
	e.now += 400
	down, up := e.now, e.now+50
	for _, o := range e.run.Ops {
		if o.Return > down-350 && o.Outcome == OK && e.rng.IntN(2) == 0 {
			o.Outcome, o.Answer, o.Return = Unknown, nil, up
		}
	}
	for client := range 6 {
		o := &Op{Client: client, Call: down - 10 + int64(client), Return: up, Outcome: Unknown, Put: e.put()}
		if e.busy[client] < o.Call {
			e.run.Ops = append(e.run.Ops, o) // never applied
		}
		e.busy[client] = up
	}
	e.run.Crashes = append(e.run.Crashes, Crash{Down: down, Up: up})
	gapped := *e.state
	gapped.rev += e.rng.Int64N(50)
	gapped.before = e.state
	e.state = &gapped
	e.now = up + 1000
}

func (e *etcd) history(steps int, crashes bool) *Run {
	for i := range steps {
		if crashes && i%200 == 199 {
			e.crash()
		}
		e.step()
	}
	e.run.Revision = e.state.rev
	return &e.run
}

func TestHistoriesOfOneEtcdAreLinearizable(t *testing.T) {
	for seed := range uint64(8) {
		run := newEtcd(seed).history(1500, seed%2 == 1)
		if err := Linearizable(run, checkLimit); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		run.Dense = seed%2 == 0
		if errs := Check(run); len(errs) > 0 {
			t.Fatalf("seed %d: %v", seed, errs[0])
		}
	}
}

// TestLinearizableFindsPlantedBugs: each of these is put into a good history.
func TestLinearizableFindsPlantedBugs(t *testing.T) {
	answered := func(run *Run, what func(o *Op) bool) *Op {
		for _, o := range run.Ops[len(run.Ops)/2:] {
			if o.Outcome == OK && what(o) {
				return o
			}
		}
		return nil
	}
	setHeader := func(o *Op, rev int64) {
		o.Answer = proto.Clone(o.Answer)
		o.Answer.(interface{ GetHeader() *pb.ResponseHeader }).GetHeader().Revision = rev
	}
	for name, plant := range map[string]func(e *etcd, run *Run) *Op{
		"stale read": func(e *etcd, run *Run) *Op {
			o := answered(run, func(o *Op) bool { return o.Range != nil && o.Range.RangeEnd != nil && o.Range.Revision == 0 })
			o.Range.Serializable = false
			o.Answer, _ = apply(e.state, o, o.header()-60)
			return o
		},
		"stale read under a new header": func(e *etcd, run *Run) *Op {
			o := answered(run, func(o *Op) bool {
				return o.Range != nil && o.Range.RangeEnd != nil && o.Range.Revision == 0 && !o.Range.Serializable
			})
			rev := o.header()
			o.Answer, _ = apply(e.state, o, rev-60)
			setHeader(o, rev)
			return o
		},
		"wrong state at an old revision": func(e *etcd, run *Run) *Op {
			o := answered(run, func(o *Op) bool { return o.Range != nil && o.Range.RangeEnd != nil && o.Range.Revision > 0 })
			o.Answer.(*pb.RangeResponse).Count++
			return o
		},
		"serializable read of a state that never was": func(e *etcd, run *Run) *Op {
			o := answered(run, func(o *Op) bool { return o.Range != nil && o.Range.RangeEnd != nil && o.Range.Serializable })
			o.Answer.(*pb.RangeResponse).Count++
			return o
		},
		"read of what was compacted": func(e *etcd, run *Run) *Op {
			c := answered(run, func(o *Op) bool { return o.Compact != nil })
			var last *Op
			for _, o := range run.Ops {
				if o.Range != nil && o.Outcome == OK && o.Call > c.Return && !o.Range.Serializable {
					last = o
				}
			}
			rev := last.header()
			last.Range.Revision = c.Compact.Revision - 1
			last.Answer, _ = apply(e.state, last, rev)
			return last
		},
		"refused a revision that is there": func(e *etcd, run *Run) *Op {
			o := answered(run, func(o *Op) bool { return o.Range != nil && o.Range.Revision > 0 })
			o.Outcome, o.Refusal, o.Answer = Refused, RefusedFuture, nil
			return o
		},
		"acknowledged write lost": func(e *etcd, run *Run) *Op {
			o := &Op{Client: 99, Call: e.now, Return: e.now + 1, Put: e.put()}
			o.Answer = &pb.PutResponse{Header: &pb.ResponseHeader{Revision: e.state.rev + 1}}
			late := &Op{Client: 99, Call: e.now + 2, Return: e.now + 3, Range: &pb.RangeRequest{Key: o.Put.Key}}
			late.Answer, _ = apply(e.state, late, e.state.rev)
			run.Ops = append(run.Ops, o, late)
			return o
		},
		"revision given twice": func(e *etcd, run *Run) *Op {
			o := answered(run, func(o *Op) bool { return o.Put != nil })
			again := *o
			again.Put = e.put()
			again.Answer = &pb.PutResponse{Header: &pb.ResponseHeader{Revision: o.header()}}
			run.Ops = append(run.Ops, &again)
			return &again
		},
		"gap though nothing failed": func(e *etcd, run *Run) *Op {
			o := &Op{Client: 99, Call: e.now + 1000, Return: e.now + 1001, Put: e.put()}
			o.Answer, _ = apply(e.state, o, e.state.rev+1)
			run.Ops = append(run.Ops, o)
			return o
		},
		"transaction took the wrong branch": func(e *etcd, run *Run) *Op {
			o := answered(run, func(o *Op) bool { return o.Txn != nil && o.Answer.(*pb.TxnResponse).Succeeded })
			o.Txn.Compare[0].Result = pb.Compare_NOT_EQUAL
			return o
		},
		"write takes effect before it was asked for": func(e *etcd, run *Run) *Op {
			o := answered(run, func(o *Op) bool { return o.Put != nil })
			o.Call, o.Return = e.now+5000, e.now+5001
			return o
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEtcd(42)
			run := e.history(600, false)
			run.Ops = slices.Clone(run.Ops)
			if o := plant(e, run); o == nil {
				t.Fatal("nothing to plant")
			}
			err := Linearizable(run, checkLimit)
			if err == nil || !strings.Contains(err.Error(), "not linearizable") {
				t.Fatalf("not found: %v", err)
			}
		})
	}
}

// TestGapsAreForCrashesOnly: a gap is all right in the first answer after a
// crash, and wrong in the second.
func TestGapsAreForCrashesOnly(t *testing.T) {
	put := func(at int64, rev int64) *Op {
		return &Op{Call: at, Return: at + 1, Put: &pb.PutRequest{Key: fmt.Appendf(nil, "k%d", at)},
			Answer: &pb.PutResponse{Header: &pb.ResponseHeader{Revision: rev}}}
	}
	crash := []Crash{{Down: 10, Up: 20}}
	for _, c := range []struct {
		name    string
		ops     []*Op
		crashes []Crash
		good    bool
	}{
		{"dense", []*Op{put(1, 2), put(3, 3)}, nil, true},
		{"gap", []*Op{put(1, 2), put(3, 4)}, nil, false},
		{"gap over a crash", []*Op{put(1, 2), put(30, 9), put(40, 10)}, crash, true},
		{"a second gap", []*Op{put(1, 2), put(30, 9), put(40, 11)}, crash, false},
		{"gap before the crash", []*Op{put(1, 2), put(5, 4), put(30, 9)}, crash, false},
		{"repetition over a crash", []*Op{put(1, 2), put(5, 3), put(30, 3)}, crash, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			run := &Run{Ops: c.ops, Crashes: c.crashes}
			if err := Linearizable(run, checkLimit); (err == nil) != c.good {
				t.Errorf("got %v", err)
			}
		})
	}
}

package compat

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// Generator makes steps from a seed. With the same seed and the same answers it makes the same steps.
//
// It draws keys from a small pool so that requests meet each other's traces: see keys. It aims at what is special (the compacted
// revision, an existing key's mod revision, a key that is a range's first) more often than chance would.
type Generator struct {
	rng    *rand.Rand
	splits splitPlan
	// burst: the next steps belong to a burst, which lasts 40 steps on average.
	burst bool
	// script are steps that belong together and come next.
	script []Op
}

// NewGenerator returns a generator for a run of steps in which the keyspace is cut into a number of ranges: a part of them at the
// start and the rest in the middle of the run.
func NewGenerator(seed uint64, steps, ranges int) *Generator {
	g := &Generator{rng: rand.New(rand.NewPCG(seed, 0x68617773))}
	g.splits = g.planSplits(steps, ranges)
	return g
}

// Next makes the next step.
func (g *Generator) Next(s *State, watchers []*watcher) Op {
	if op, ok := g.splits.next(); ok {
		return op
	}
	if len(g.script) == 0 && g.chance(400) {
		g.script = g.makeScript(s)
	}
	if len(g.script) > 0 {
		op := g.script[0]
		g.script = g.script[1:]
		return op
	}
	op := g.pick(s, watchers)
	op.Burst = g.burst
	if g.chance(40) {
		g.burst = !g.burst && g.chance(3)
	}
	return op
}

func (g *Generator) pick(s *State, watchers []*watcher) Op {
	type weighted struct {
		weight int
		make   func() Op
	}
	choices := []weighted{
		{240, func() Op { return Op{Kind: Range, Request: g.rangeRequest(s)} }},
		{60, func() Op { return Op{Kind: RangeStream, Request: g.streamRequest(s)} }},
		{230, func() Op { return Op{Kind: Put, Request: g.putRequest(s)} }},
		{80, func() Op { return Op{Kind: DeleteRange, Request: g.deleteRequest(s)} }},
		{210, func() Op { return Op{Kind: Txn, Request: g.txnRequest(s)} }},
		{14, func() Op { return Op{Kind: Compact, Request: g.compactRequest(s)} }},
		{22, func() Op { return Op{Kind: HashKV, Request: &pb.HashKVRequest{Revision: g.revision(s)}} }},
		{5, func() Op { return Op{Kind: Status, Request: &pb.StatusRequest{}} }},
		{3, func() Op { return Op{Kind: Alarm, Request: &pb.AlarmRequest{}} }},
		{3, func() Op { return Op{Kind: MemberList, Request: &pb.MemberListRequest{Linearizable: g.chance(2)}} }},
		{60, func() Op { return g.watchCreate(s, watchers) }},
		{30, func() Op { return g.watchCancel(watchers) }},
		{30, func() Op {
			return g.watchOp(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
		}},
		{3, func() Op { return g.watchOp(&pb.WatchRequest{}) }},
		{5, func() Op { return Op{Kind: WatchClose, Stream: g.rng.IntN(watchStreams)} }},
	}
	total := 0
	for _, c := range choices {
		total += c.weight
	}
	n := g.rng.IntN(total)
	for _, c := range choices {
		if n -= c.weight; n < 0 {
			return c.make()
		}
	}
	panic("compat: weights")
}

// chance is true once in n times.
func (g *Generator) chance(n int) bool { return g.rng.IntN(n) == 0 }

func oneOf[T any](g *Generator, values ...T) T { return values[g.rng.IntN(len(values))] }

// oddKeys are keys at the edges of the order: runs of the lowest and the highest byte, prefixes of one another, and long ones.
var oddKeys = slices.Concat([]string{
	"\x00", "\x00\x00", "\x00\x00\x00", "\x00\x01", "\x00\xff", "\x01", "\x01\x00",
	"a", "a\x00", "a\x00\x00", "a\x00\x01", "a\x01", "aa", "aaa", "ab", "a\xff", "a\xff\xff", "b", "b\x00b", "ba", "c",
	"k", "k/", "k0", "l", "z", "\xc3\xa9", "\xfe\xff", "\xff", "\xff\x00", "\xff\xff", "\xff\xff\x00", "\xff\xff\xff", "\xff\xff\xff\xff",
}, longKeys)

var longKeys = []string{
	strings.Repeat("l", 4096), strings.Repeat("l", 4096) + "\x00", strings.Repeat("l", 4096) + "a", strings.Repeat("l", 4095) + "m",
	strings.Repeat("\x00", 300), strings.Repeat("\xff", 300), strings.Repeat("a\x00", 700),
}

// hugeKeys are rare: each costs its length in every answer.
var hugeKeys = []string{strings.Repeat("L", 100<<10), strings.Repeat("L", 100<<10) + "x"}

// denseKeys lie close together, so that a span has many of them.
const denseKeys = 120

func denseKey(n int) string { return fmt.Sprintf("k/%03d", n) }

// bigValueKeys hold the values of 1 MiB; there are few, so that most reads are cheap.
const bigValueKeys = 3

// key draws a key from the pool.
func (g *Generator) key(s *State) []byte {
	switch n := g.rng.IntN(1000); {
	case n < 330:
		return []byte(oneOf(g, oddKeys...))
	case n < 600:
		return []byte(denseKey(g.rng.IntN(20)))
	case n < 800:
		return []byte(denseKey(g.rng.IntN(denseKeys)))
	case n < 850:
		return []byte(denseKey(g.rng.IntN(denseKeys)) + "/sub")
	case n < 950:
		short := make([]byte, 1+g.rng.IntN(5))
		for i := range short {
			short[i] = oneOf[byte](g, 0, 1, 'a', 'b', 0xff)
		}
		return short
	case n < 995:
		return []byte(g.liveKey(s))
	default:
		return []byte(oneOf(g, hugeKeys...))
	}
}

// liveKey draws a key that exists, if there is one.
func (g *Generator) liveKey(s *State) string {
	if len(s.Live) == 0 {
		return "a"
	}
	keys := slices.Sorted(maps.Keys(s.Live))
	return keys[g.rng.IntN(len(keys))]
}

// span draws an interval.
func (g *Generator) span(s *State) (key, end []byte) {
	key = g.key(s)
	switch n := g.rng.IntN(100); {
	case n < 35:
		return key, nil
	case n < 42:
		return key, []byte{0}
	case n < 45:
		return []byte{0}, []byte{0}
	case n < 60:
		return []byte("k/"), []byte("k0")
	case n < 70:
		return key, prefixEnd(key)
	case n < 90:
		other := g.key(s)
		if bytes.Compare(other, key) < 0 {
			key, other = other, key
		}
		return key, other
	case n < 93:
		return key, g.key(s) // Perhaps before the key: nothing, or an error for watchers.
	case n < 96:
		return key, key
	default:
		return key, append(bytes.Clone(key), 0)
	}
}

// prefixEnd returns the end of the interval of all keys with a prefix, as clients make it.
func prefixEnd(prefix []byte) []byte {
	end := bytes.Clone(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] < 0xff {
			end[i]++
			return end[:i+1]
		}
	}
	return []byte{0}
}

// revision draws the revision of a read: the current one as 0 mostly.
func (g *Generator) revision(s *State) int64 {
	switch n := g.rng.IntN(100); {
	case n < 50:
		return 0
	case n < 75:
		return s.Revision - g.rng.Int64N(min(s.Revision, 60))
	case n < 80:
		return s.Revision
	case n < 84:
		return s.Revision + 1
	case n < 86:
		return s.Revision + 2 + g.rng.Int64N(1000)
	case n < 92:
		return s.Compacted + g.rng.Int64N(3) - 1
	case n < 95:
		return 1 + g.rng.Int64N(s.Revision)
	case n < 97:
		return -1
	default:
		return oneOf[int64](g, 1, -2, math.MaxInt64, math.MinInt64)
	}
}

// bound draws a bound for a revision filter; mostly none.
func (g *Generator) bound(s *State) int64 {
	if !g.chance(12) {
		return 0
	}
	return oneOf(g, s.Revision, s.Revision-g.rng.Int64N(min(s.Revision, 40)), s.Revision+1, 1, -1, math.MaxInt64)
}

func (g *Generator) rangeRequest(s *State) *pb.RangeRequest {
	key, end := g.span(s)
	r := &pb.RangeRequest{
		Key: key, RangeEnd: end, Revision: g.revision(s),
		Serializable: g.chance(4), KeysOnly: g.chance(4), CountOnly: g.chance(6),
		MinModRevision: g.bound(s), MaxModRevision: g.bound(s), MinCreateRevision: g.bound(s), MaxCreateRevision: g.bound(s),
	}
	if g.chance(3) {
		r.Limit = oneOf[int64](g, 1, 1, 2, 3, 10, 50, 1000, -1, math.MaxInt64, math.MinInt64)
	}
	if g.chance(3) {
		r.SortOrder = pb.RangeRequest_SortOrder(g.rng.IntN(3))
		r.SortTarget = pb.RangeRequest_SortTarget(g.rng.IntN(5))
	}
	if g.chance(60) {
		r.SortOrder = oneOf[pb.RangeRequest_SortOrder](g, 3, -1, math.MaxInt32)
	}
	if g.chance(60) {
		r.SortTarget = oneOf[pb.RangeRequest_SortTarget](g, 5, -1, math.MinInt32)
	}
	if g.chance(80) {
		r.Key = nil
	}
	return r
}

// streamRequest is a Range mostly without what RangeStream refuses.
func (g *Generator) streamRequest(s *State) *pb.RangeRequest {
	r := g.rangeRequest(s)
	if !g.chance(8) {
		r.SortOrder, r.SortTarget = oneOf(g, pb.RangeRequest_NONE, pb.RangeRequest_ASCEND), pb.RangeRequest_KEY
		r.MinModRevision, r.MaxModRevision, r.MinCreateRevision, r.MaxCreateRevision = 0, 0, 0, 0
	}
	return r
}

func (g *Generator) value() []byte {
	switch n := g.rng.IntN(100); {
	case n < 12:
		return nil
	case n < 85:
		return []byte(oneOf(g, "1", "2", "3", "v", "value", "\x00", "\xff\xff", "longer value"))
	case n < 98:
		return bytes.Repeat([]byte{byte('a' + g.rng.IntN(20))}, g.rng.IntN(1000))
	default:
		return bytes.Repeat([]byte("x"), 10<<10+g.rng.IntN(1000))
	}
}

// lease draws a lease id. There are no leases yet, so all but 0 are unknown.
func (g *Generator) lease() int64 {
	if !g.chance(15) {
		return 0
	}
	return oneOf[int64](g, 1, 42, -1, math.MaxInt64)
}

// maxRequestBytes is the default of --max-request-bytes (etcd/X7). Near it the answer depends on the width of a server's ids.
const maxRequestBytes = 3 << 19

func (g *Generator) putRequest(s *State) *pb.PutRequest {
	r := &pb.PutRequest{Key: g.key(s), Value: g.value(), Lease: g.lease(), PrevKv: g.chance(4)}
	switch n := g.rng.IntN(1000); {
	case n < 15:
		r.Key = []byte(fmt.Sprintf("v/%d", g.rng.IntN(bigValueKeys)))
		r.Value = bytes.Repeat([]byte{byte('a' + g.rng.IntN(20))}, 1<<20)
	case n < 18:
		r.Value = bytes.Repeat([]byte("y"), maxRequestBytes+1000) // too large for a request
	case n < 20:
		r.Value = bytes.Repeat([]byte("y"), maxRequestBytes+512<<10) // too large for gRPC
	case n < 60:
		r.IgnoreValue = true
		if !g.chance(4) {
			r.Value = nil
		}
	case n < 100:
		r.IgnoreLease, r.Lease = true, 0
		if g.chance(4) {
			r.Lease = 42
		}
	case n < 110:
		r.IgnoreLease, r.IgnoreValue, r.Value, r.Lease = true, true, nil, 0
	case n < 120:
		r.Key = nil
	}
	return r
}

func (g *Generator) deleteRequest(s *State) *pb.DeleteRangeRequest {
	r := &pb.DeleteRangeRequest{PrevKv: g.chance(3)}
	r.Key, r.RangeEnd = g.span(s)
	switch {
	case g.chance(60):
		r.Key = nil
	case len(r.RangeEnd) > 0 && !g.chance(3):
		r.RangeEnd = nil // Large deletes would leave nothing to read.
	}
	return r
}

func (g *Generator) compactRequest(s *State) *pb.CompactionRequest {
	r := &pb.CompactionRequest{Physical: g.chance(2)}
	switch n := g.rng.IntN(100); {
	case n < 30:
		r.Revision = s.Compacted + 1 + g.rng.Int64N((s.Revision-s.Compacted)/2+1)
	case n < 45:
		r.Revision = s.Revision - g.rng.Int64N(min(s.Revision, 30))
	case n < 52:
		r.Revision = s.Revision
	default:
		r.Revision = oneOf(g, s.Compacted, s.Compacted-1, s.Compacted+1, s.Revision+1, s.Revision+100, 0, -1, math.MaxInt64, math.MinInt64)
	}
	return r
}

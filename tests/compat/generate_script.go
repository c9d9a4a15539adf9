package compat

import (
	"bytes"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// manyRevisions is more than the revisions that etcd puts into one catch-up response (etcd/W10).
const manyRevisions = 1100

// makeScript makes steps that chance alone would hardly put in a row.
func (g *Generator) makeScript(s *State) []Op {
	put := func(key string, value []byte, burst bool) Op {
		return Op{Kind: Put, Request: &pb.PutRequest{Key: []byte(key), Value: value}, Burst: burst}
	}
	watch := func(key, end string, start int64, fragment bool) Op {
		request := &pb.WatchCreateRequest{Key: []byte(key), RangeEnd: []byte(end), StartRevision: start, Fragment: fragment, PrevKv: g.chance(2)}
		return g.watchOp(createRequest(request))
	}
	switch {
	case g.chance(20):
		// History of more revisions than one response holds.
		var script []Op
		for n := range manyRevisions {
			script = append(script, put(denseKey(n%denseKeys), []byte(fmt.Sprint(n)), true))
		}
		return append(script, watch("k/", "k0", s.Revision+1, false), watch("k/00", "k/01", s.Revision+2, true))
	case g.chance(2):
		// History that must be sent in fragments, to those who asked (etcd/W14).
		var script []Op
		for n := range bigValueKeys {
			script = append(script, put(fmt.Sprintf("v/%d", n), bytes.Repeat([]byte{byte('a' + g.rng.IntN(20))}, 1<<20), false))
		}
		return append(script, watch("v/", "v0", s.Revision+1, true), watch("v/", "v0", s.Revision+1, false),
			Op{Kind: RangeStream, Request: &pb.RangeRequest{Key: []byte("v/"), RangeEnd: []byte("v0")}})
	default:
		// The last change of a key before the compacted revision is a delete, or is at it (etcd/C3): what is left, and what is its hash?
		key := denseKey(g.rng.IntN(20))
		remove := Op{Kind: DeleteRange, Request: &pb.DeleteRangeRequest{Key: []byte(key)}}
		compact := Op{Kind: Compact, Request: &pb.CompactionRequest{Revision: s.Revision + oneOf[int64](g, 1, 2, 3), Physical: true}}
		hash := Op{Kind: HashKV, Request: &pb.HashKVRequest{}}
		at := compact.Request.(*pb.CompactionRequest).Revision
		read := Op{Kind: Range, Request: &pb.RangeRequest{Key: []byte(key), Revision: at}}
		return []Op{put(key, []byte("1"), false), remove, put("a", []byte("2"), false), hash, compact, hash, read, watch("k/", "k0", at, false), hash}
	}
}

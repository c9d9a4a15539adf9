package mvcc

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Whoever stores or carries effects counts on their weight: they are never larger,
// neither encoded nor as the rows that Apply stages.
func TestWeightBoundsWhatEffectsTake(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	h := newHistory(t)
	rev := int64(1 << 60)
	for n := range 300 {
		var born, effs []Effect
		for sub := range uint32(1 + rnd.IntN(5)) {
			key := bytes.Repeat([]byte{byte(rnd.IntN(2))}, 1+rnd.IntN(60)) // zeros are escaped
			key = fmt.Appendf(key, "%d.%d", n, sub)
			born = append(born, Effect{Key: key, Sub: sub, Version: 1})
			e := Effect{Key: key, Sub: math.MaxUint32 - sub, OldLease: -rnd.Int64(), Prior: Place{rnd.Int64N(1000) + 1, math.MaxUint32}}
			if e.Tombstone = rnd.IntN(3) == 0; !e.Tombstone {
				e.Value = make([]byte, rnd.IntN(60))
				e.Lease, e.Version, e.CreateRevision = -rnd.Int64(), math.MaxInt64, 1
			}
			effs = append(effs, e)
		}
		rev++
		h.apply(rev, born)
		rev++
		b := h.s.db.NewBatch()
		if err := h.s.Apply(b, rev, effs); err != nil {
			t.Fatal(err)
		}
		weight := EffectsWeight(effs)
		if encoded := AppendEffects(nil, effs); int64(len(encoded)) > weight || int64(b.Len()) > weight {
			t.Fatalf("weight %d, %d bytes encoded, %d staged: %+v", weight, len(encoded), b.Len(), effs)
		}
		if err := b.Commit(pebble.NoSync); err != nil {
			t.Fatal(err)
		}
	}
}

// sameValue is a view in which every key lives and has the same value.
type sameValue struct {
	View
	value []byte
}

func (v sameValue) Revision() int64 { return latestRevision }

func (v sameValue) Get(key []byte) (*mvccpb.KeyValue, error) {
	return &mvccpb.KeyValue{Key: key, Value: v.value, CreateRevision: 1, ModRevision: 1, Version: 1}, nil
}

// The effects of one revision weigh at most so much, whatever makes them large: a
// small request may, which puts leases on large values. The next byte is refused.
func TestEffectsAboveTheLimitAreRefused(t *testing.T) {
	const ops = 64
	each := MaxEffectsBytes/ops - (&Effect{Key: []byte("k00")}).weight()
	keepValues := func(value int64) (*Result, error) {
		txn := &pb.TxnRequest{}
		for i := range ops {
			p := &pb.PutRequest{Key: fmt.Appendf(nil, "k%02d", i), IgnoreValue: true}
			txn.Success = append(txn.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: p}})
		}
		return Evaluate(sameValue{value: make([]byte, value)}, &Request{Txn: txn}, Env{})
	}
	res, err := keepValues(each)
	if err != nil || EffectsWeight(res.Effects) != MaxEffectsBytes {
		t.Fatalf("effects of the largest weight: %v", err)
	}
	if _, err := keepValues(each + 1); !errors.Is(err, ErrTooLarge) {
		t.Errorf("effects of one byte more: %v", err)
	}

	h := newHistory(t)
	h.put("a", "value")
	h.put("b", "value")
	end := []byte("c")
	put := func(k, v string) *pb.PutRequest { return &pb.PutRequest{Key: []byte(k), Value: []byte(v)} }
	del := func(prev bool) *pb.DeleteRangeRequest {
		return &pb.DeleteRangeRequest{Key: []byte("a"), RangeEnd: end, PrevKv: prev}
	}
	one := func(prev bool) *pb.DeleteRangeRequest {
		return &pb.DeleteRangeRequest{Key: []byte("a"), PrevKv: prev}
	}
	tombstone := (&Effect{Key: []byte("a")}).weight()
	for name, tc := range map[string]struct {
		req    *Request
		weight int64
	}{
		"put":             {&Request{Put: put("x", "12345")}, tombstone + 5},
		"put in txn":      {&Request{Txn: &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: put("x", "12345")}}}}}, tombstone + 5},
		"delete":          {&Request{DeleteRange: one(false)}, tombstone},
		"delete, prev_kv": {&Request{DeleteRange: one(true)}, tombstone},
		"wide":            {&Request{DeleteRange: del(false)}, 2 * tombstone},
		"wide, prev_kv":   {&Request{DeleteRange: del(true)}, 2 * tombstone},
		"wide in txn":     {&Request{Txn: &pb.TxnRequest{Success: []*pb.RequestOp{deleteOp(del(false))}}}, 2 * tombstone},
	} {
		env := h.env
		env.MaxEffectsBytes = tc.weight
		if res, err := Evaluate(h.s.Latest(), tc.req, env); err != nil || EffectsWeight(res.Effects) != tc.weight {
			t.Errorf("%s: effects of just the weight: %v", name, err)
		}
		env.MaxEffectsBytes--
		if _, err := Evaluate(h.s.Latest(), tc.req, env); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: effects that weigh more: %v", name, err)
		}
	}
}

package mvcc

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
)

var etcdAddr = flag.String("etcd", "", "client address of an etcd 3.7 without data: "+
	"TestHashIsEtcds runs its history there, too, and writes what it hashes to "+etcdHashes)

// etcdHashes is what etcd 3.7.3 hashed: revision, compacted revision, hash.
const etcdHashes = "testdata/etcd_hashes"

// hashHistory makes the requests of the history that is hashed. It must give the
// same ones for ever; a change needs new hashes of a real etcd.
type hashHistory struct{ rng *rand.Rand }

func (h *hashHistory) key() []byte {
	return [][]byte{[]byte("a"), []byte("a\x00"), {0}, {0xff, 0xff}, []byte("key/with/a/long/name")}[h.rng.IntN(5)]
}

func (h *hashHistory) small() []byte {
	if h.rng.IntN(5) == 0 {
		return h.key()
	}
	return fmt.Appendf(nil, "k%02d", h.rng.IntN(20))
}

func (h *hashHistory) put(key []byte) *pb.PutRequest {
	p := &pb.PutRequest{Key: key, Value: bytes.Repeat([]byte{'v'}, h.rng.IntN(200))}
	if h.rng.IntN(4) == 0 {
		p.Lease = []int64{7, 1 << 60}[h.rng.IntN(2)]
	}
	return p
}

func (h *hashHistory) delete(key []byte) *pb.DeleteRangeRequest {
	d := &pb.DeleteRangeRequest{Key: key}
	if h.rng.IntN(3) == 0 {
		d.RangeEnd = append(slices.Clone(key), 0xff)
	}
	return d
}

func hashPut(p *pb.PutRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: p}}
}

func hashDelete(d *pb.DeleteRangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: d}}
}

func hashTxn(ops ...*pb.RequestOp) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{Success: ops}}}
}

// request is a request, or nil: all keys go.
func (h *hashHistory) request() *Request {
	switch h.rng.IntN(10) {
	case 0, 1, 2, 3:
		return &Request{Put: h.put(h.small())}
	case 4, 5:
		return &Request{DeleteRange: h.delete(h.small())}
	case 6:
		// One key twice in one revision: put, then deleted.
		k := h.small()
		return &Request{Txn: &pb.TxnRequest{Success: []*pb.RequestOp{
			hashTxn(hashPut(h.put(k))), hashTxn(hashDelete(&pb.DeleteRangeRequest{Key: k})), hashPut(h.put([]byte("zz"))),
		}}}
	case 7:
		k, o := fmt.Appendf(nil, "t%02d", h.rng.IntN(5)), fmt.Appendf(nil, "u%02d", h.rng.IntN(5))
		return &Request{Txn: &pb.TxnRequest{Success: []*pb.RequestOp{
			hashDelete(&pb.DeleteRangeRequest{Key: o}), hashPut(h.put(k)), hashPut(h.put(append(k, 'x'))),
		}}}
	case 8:
		return &Request{Txn: &pb.TxnRequest{
			Compare: []*pb.Compare{{Key: h.small(), Target: pb.Compare_VERSION, Result: pb.Compare_GREATER, TargetUnion: &pb.Compare_Version{Version: 1}}},
			Success: []*pb.RequestOp{hashDelete(h.delete(h.small()))},
			Failure: []*pb.RequestOp{hashPut(h.put(h.small()))},
		}}
	}
	if h.rng.IntN(4) == 0 {
		return &Request{DeleteRange: &pb.DeleteRangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}}
	}
	return &Request{Put: h.put(h.small())}
}

// hashed is what the history is run on.
type hashed interface {
	do(r *Request) (current int64)
	compact(rev int64)
	hash(rev int64) (hash uint32, compacted int64)
}

// run runs the history and returns a line for each hash.
func (h *hashHistory) run(on hashed) []string {
	var lines []string
	current, compacted := int64(1), int64(0)
	take := func(rev int64) {
		sum, c := on.hash(rev)
		lines = append(lines, fmt.Sprintf("%d %d %08x", rev, c, sum))
	}
	for i := range 800 {
		current = on.do(h.request())
		switch {
		case i%40 == 39 && current > compacted+1:
			// Up to the current revision, exactly at deletions, too.
			compacted += 1 + h.rng.Int64N(current-compacted)
			on.compact(compacted)
		case i%5 == 0 && current > compacted:
			take(current)
			// A hash at the compacted revision itself is remembered by etcd from
			// before the compaction: not asked for.
			take(compacted + 1 + h.rng.Int64N(current-compacted))
		}
	}
	return lines
}

// hashedStore runs the history on a store.
type hashedStore struct {
	t         *testing.T
	s         *Store
	current   int64
	compacted int64
	physical  bool // compactions remove at once
}

func (u *hashedStore) do(r *Request) int64 {
	result, err := Evaluate(u.s.Latest(), r, Env{LeaseExists: func(int64) bool { return true }, Current: u.current})
	if err != nil {
		u.t.Fatal(err)
	}
	if len(result.Effects) == 0 {
		return u.current
	}
	u.current++
	b := u.s.db.NewBatch()
	if err := u.s.Apply(b, u.current, result.Effects); err != nil {
		u.t.Fatal(err)
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		u.t.Fatal(err)
	}
	return u.current
}

func (u *hashedStore) compact(rev int64) {
	u.compacted = rev
	if !u.physical {
		return
	}
	compact(u.t, u.s, rev, 3)
}

func (u *hashedStore) hash(rev int64) (uint32, int64) {
	c := u.compacted
	if c == 0 {
		c = -1
	}
	sum := u.sum(0, rev)
	// Whatever fits into memory at a time, the hash is the same.
	for _, limit := range []int{20, 70} {
		if got := u.sum(limit, rev); got != sum {
			u.t.Fatalf("hash at %d with %d versions in memory: %08x, with all: %08x", rev, limit, got, sum)
		}
	}
	return sum, c
}

// sum hashes in pieces, as if ranges of several nodes were asked.
func (u *hashedStore) sum(limit int, rev int64) uint32 {
	h := NewHasher(limit)
	for more := true; more; more = h.EndWalk() {
		end := []byte(nil)
		for _, start := range [][]byte{[]byte("t00"), []byte("k07"), []byte("a\x00"), {}} {
			if err := u.s.HashVersions(start, end, rev, u.compacted, h); err != nil {
				u.t.Fatal(err)
			}
			end = start
		}
	}
	return h.Sum()
}

// hashedEtcd runs the history on a real etcd.
type hashedEtcd struct {
	t     *testing.T
	kv    pb.KVClient
	admin pb.MaintenanceClient
}

func (u hashedEtcd) do(r *Request) int64 {
	ctx := context.Background()
	var header *pb.ResponseHeader
	var err error
	switch {
	case r.Put != nil:
		var resp *pb.PutResponse
		resp, err = u.kv.Put(ctx, r.Put)
		header = resp.GetHeader()
	case r.DeleteRange != nil:
		var resp *pb.DeleteRangeResponse
		resp, err = u.kv.DeleteRange(ctx, r.DeleteRange)
		header = resp.GetHeader()
	default:
		var resp *pb.TxnResponse
		resp, err = u.kv.Txn(ctx, r.Txn)
		header = resp.GetHeader()
	}
	if err != nil {
		u.t.Fatalf("%v: %v", r.message(), err)
	}
	return header.GetRevision()
}

func (u hashedEtcd) compact(rev int64) {
	if _, err := u.kv.Compact(context.Background(), &pb.CompactionRequest{Revision: rev, Physical: true}); err != nil {
		u.t.Fatal(err)
	}
}

func (u hashedEtcd) hash(rev int64) (uint32, int64) {
	resp, err := u.admin.HashKV(context.Background(), &pb.HashKVRequest{Revision: rev})
	if err != nil {
		u.t.Fatal(err)
	}
	if resp.HashRevision != rev {
		u.t.Fatalf("hash of revision %d, want %d", resp.HashRevision, rev)
	}
	return resp.Hash, resp.CompactRevision
}

func askEtcd(t *testing.T) []string {
	conn, err := grpc.NewClient(*etcdAddr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	for _, id := range []int64{7, 1 << 60} {
		if _, err := pb.NewLeaseClient(conn).LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: id, TTL: 3600}); err != nil {
			t.Fatal(err)
		}
	}
	h := hashHistory{rand.New(rand.NewPCG(3, 7))}
	return h.run(hashedEtcd{t, pb.NewKVClient(conn), pb.NewMaintenanceClient(conn)})
}

// TestHashIsEtcds compares with what etcd 3.7.3 hashed of the same history (etcd/MA4).
func TestHashIsEtcds(t *testing.T) {
	if *etcdAddr != "" {
		if err := os.WriteFile(etcdHashes, []byte(strings.Join(askEtcd(t), "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(etcdHashes)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSpace(string(text)), "\n")
	for _, physical := range []bool{true, false} {
		t.Run(fmt.Sprintf("garbage removed=%t", physical), func(t *testing.T) {
			h := hashHistory{rand.New(rand.NewPCG(3, 7))}
			got := h.run(&hashedStore{t: t, s: newStore(t), current: 1, physical: physical})
			if len(got) < 200 || len(got) != len(want) {
				t.Fatalf("%d hashes, want %d", len(got), len(want))
			}
			for i := range got {
				if got[i] != want[i] {
					t.Fatalf("hash %d: %s, etcd: %s", i, got[i], want[i])
				}
			}
		})
	}
}

func TestHashOfWhatIsForgottenIsRefused(t *testing.T) {
	s := newStore(t)
	u := &hashedStore{t: t, s: s, current: 1, physical: true}
	for range 5 {
		u.do(&Request{Put: &pb.PutRequest{Key: []byte("k")}})
	}
	u.compact(4)
	for _, c := range []struct{ rev, compacted int64 }{{5, 3}, {5, -1}, {3, 4}} {
		if err := s.HashVersions(nil, nil, c.rev, c.compacted, NewHasher(0)); !errors.Is(err, ErrCompacted) {
			t.Errorf("hash at %d, compacted at %d: %v", c.rev, c.compacted, err)
		}
	}
	if err := s.HashVersions(nil, nil, 4, 4, NewHasher(0)); err != nil {
		t.Error(err)
	}
}

func TestHashedRowIsTheEncodedKeyValue(t *testing.T) {
	for _, kv := range []*mvccpb.KeyValue{
		{Key: []byte("k"), CreateRevision: 3, ModRevision: 300, Version: 5, Value: []byte("v"), Lease: -2},
		{Key: []byte("\x00"), CreateRevision: 300, ModRevision: 300, Version: 1},
	} {
		want, err := proto.Marshal(kv)
		if err != nil {
			t.Fatal(err)
		}
		v := version{createRevision: kv.CreateRevision, version: kv.Version, lease: kv.Lease, value: kv.Value}
		got := appendHashedRow(nil, kv.Key, &v, 300, 2)
		if head := "\x00\x00\x00\x00\x00\x00\x01\x2c_\x00\x00\x00\x00\x00\x00\x00\x02"; string(got) != head+string(want) {
			t.Errorf("%x, want %x%x", got, head, want)
		}
	}
}

func TestCombinedSumsAreTheSumOfTheWhole(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 100 {
		whole := []byte(hashName)
		var entries []HashEntry
		for i := range rng.IntN(30) {
			row := make([]byte, rng.IntN(3000))
			for j := range row {
				row[j] = byte(rng.Uint32())
			}
			whole = append(whole, row...)
			entries = append(entries, HashEntry{Revision: int64(i / 3), Sub: uint32(i % 3), CRC: crc32.Checksum(row, castagnoli), Len: uint32(len(row))})
		}
		rng.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
		if got, want := combine(NewHasher(2+rng.IntN(40)), entries), crc32.Checksum(whole, castagnoli); got != want {
			t.Fatalf("%08x, want %08x", got, want)
		}
	}
}

// combine gives h the entries in as many walks as it wants.
func combine(h *Hasher, entries []HashEntry) uint32 {
	for more := true; more; more = h.EndWalk() {
		for _, e := range entries {
			h.Add(e)
		}
	}
	return h.Sum()
}

// TestHashHoldsABoundedNumberOfVersions: a million versions are hashed with 200,000
// in memory, in about as many walks as that takes, and Pause can end them.
func TestHashHoldsABoundedNumberOfVersions(t *testing.T) {
	const versions, limit = 1_000_000, 200_000
	rng := rand.New(rand.NewPCG(5, 5))
	entries := make([]HashEntry, versions)
	for i := range entries {
		// Some revisions have many versions: a large delete.
		rev, sub := int64(i), uint32(0)
		if i > versions/2 {
			rev, sub = versions/2, uint32(i)
		}
		entries[i] = HashEntry{Revision: rev, Sub: sub, CRC: rng.Uint32(), Len: uint32(rng.IntN(5000)), Live: i == 17}
		if i < versions/4 && i != 17 {
			entries[i].OnlyIfEmpty = true
		}
	}
	rng.Shuffle(versions, func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
	want := combine(NewHasher(versions), entries)
	h := NewHasher(limit)
	walks := 0
	for more := true; more; more = h.EndWalk() {
		walks++
		for _, e := range entries {
			h.Add(e)
			if cap(h.entries) > limit*5/4 { // append rounds up
				t.Fatalf("it holds %d versions in room for %d, want %d", len(h.entries), cap(h.entries), limit)
			}
		}
	}
	if h.Sum() != want {
		t.Errorf("%08x, want %08x", h.Sum(), want)
	}
	if walks < versions*3/4/limit || walks > 2*versions*3/4/limit+1 {
		t.Errorf("%d walks for %d versions that count", walks, versions*3/4)
	}
	if len(h.shifts) > maxHashShifts {
		t.Errorf("%d shifts are kept", len(h.shifts))
	}
}

func TestHashCanBeGivenUp(t *testing.T) {
	s := newStore(t)
	u := &hashedStore{t: t, s: s, current: 1}
	for range 3 * stepsWithoutPause {
		u.do(&Request{Put: &pb.PutRequest{Key: []byte("k")}})
	}
	h, enough := NewHasher(0), errors.New("enough")
	pauses := 0
	h.Pause = func() error {
		if pauses++; pauses == 2 {
			return enough
		}
		return nil
	}
	if err := s.HashVersions(nil, nil, u.current, 0, h); !errors.Is(err, enough) || pauses != 2 {
		t.Errorf("%v after %d pauses", err, pauses)
	}
}

func BenchmarkHasher(b *testing.B) {
	entries := make([]HashEntry, 100_000)
	for i := range entries {
		entries[i] = HashEntry{Revision: int64(i), CRC: uint32(i) * 2654435761, Len: uint32(100 + i%50)}
	}
	for b.Loop() {
		combine(NewHasher(0), entries)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(entries)), "ns/version")
}

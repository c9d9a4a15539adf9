package integration

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-kv/hawser/proto/adminpb"
	"github.com/hawser-kv/hawser/tests/testcluster"
)

// largeValues is how many values of 1 MiB TestLargeValuesByTheThousand writes;
// HAWSER_LARGE_VALUES sets another number.
const largeValues = 160

// noise is 1 MiB that no compression makes smaller.
func noise(seed uint64) []byte {
	var key [32]byte
	binary.BigEndian.PutUint64(key[:], seed)
	value := make([]byte, mib)
	if _, err := rand.NewChaCha8(key).Read(value); err != nil {
		panic(err) // it cannot fail
	}
	return value
}

// TestLargeValuesByTheThousand: values of 1 MiB are written, read, listed as a
// stream and in pages, and watched from the first revision on, in memory that
// does not depend on how many there are.
func TestLargeValuesByTheThousand(t *testing.T) {
	n := largeValues
	if s := os.Getenv("HAWSER_LARGE_VALUES"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatalf("HAWSER_LARGE_VALUES: %v", err)
		}
	}
	p := testcluster.StartProcess(t, testcluster.ProcessOptions{Splits: []string{"v00040", "v00080", "v00120"}})
	conn := connect(t, p, 0)
	kv := pb.NewKVClient(conn)
	before := p.Report()
	key := func(i int) []byte { return fmt.Appendf(nil, "v%05d", i) }
	inParallel(n, func(i int) {
		if _, err := kv.Put(t.Context(), &pb.PutRequest{Key: key(i), Value: noise(uint64(i))}); err != nil {
			t.Errorf("put %d: %v", i, err)
		}
	})
	written := p.Report()
	t.Log("written:", before, "->", written)
	atMost(t, "memory at the peak of writing", written.PeakRSS, 768*mib)

	seen := 0
	check := func(how string, k, value []byte) {
		t.Helper()
		i, err := strconv.Atoi(string(k[1:]))
		if err != nil || sha256.Sum256(value) != sha256.Sum256(noise(uint64(i))) {
			t.Errorf("%s: %q has a wrong value of %d bytes", how, k, len(value))
		}
		seen++
	}
	list, err := kv.RangeStream(t.Context(), &pb.RangeRequest{Key: []byte("v"), RangeEnd: []byte("w")})
	if err != nil {
		t.Fatal(err)
	}
	for next := 0; ; {
		resp, err := list.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range resp.RangeResponse.Kvs {
			if !bytes.Equal(kv.Key, key(next)) {
				t.Fatalf("%q where %q is due", kv.Key, key(next))
			}
			next++
			check("stream", kv.Key, kv.Value)
		}
		if h := resp.RangeResponse.Header; h != nil && resp.RangeResponse.Count != int64(n) {
			t.Errorf("count %d, want %d", resp.RangeResponse.Count, n)
		}
	}
	if seen != n {
		t.Errorf("the stream had %d values, want %d", seen, n)
	}
	streamed := p.Report()
	t.Log("listed as a stream:", streamed)
	atMost(t, "growth of the heap at its peak by a list of everything as a stream", streamed.PeakLive-written.Heap, 96*mib)

	seen = 0
	for next := key(0); next != nil; {
		got, err := kv.Range(t.Context(), &pb.RangeRequest{Key: next, RangeEnd: []byte("w"), Limit: 3})
		if err != nil {
			t.Fatal(err)
		}
		next = nil
		for _, kv := range got.Kvs {
			check("page", kv.Key, kv.Value)
			next = append(kv.Key, 0)
		}
		if !got.More {
			break
		}
	}
	if seen != n {
		t.Errorf("the pages had %d values, want %d", seen, n)
	}
	paged := p.Report()
	t.Log("listed in pages:", paged)
	atMost(t, "growth of the heap at its peak by a list of everything in pages", paged.PeakLive-streamed.Heap, 96*mib)

	seen = 0
	w := openCall(t, conn, []*pb.WatchCreateRequest{{Key: []byte("v"), RangeEnd: []byte("w"), StartRevision: 1}})
	if w == nil {
		t.FailNow()
	}
	for seen += w.counts[1]; seen < n; {
		resp, err := w.stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range resp.Events {
			check("watch", e.Kv.Key, e.Kv.Value)
		}
	}
	watched := p.Report()
	t.Log("watched:", watched)
	atMost(t, "growth of the heap at its peak by a watch from the first revision", watched.PeakLive-paged.Heap, 128*mib)
}

// TestKeysOfHundredKilobytes: such keys work like others: written, read, ranges
// over them, compared, watched, deleted, while ranges are split; only a range
// cannot begin with one.
func TestKeysOfHundredKilobytes(t *testing.T) {
	const keys = 60
	long := bytes.Repeat([]byte("k"), 100*kib)
	key := func(i int) []byte { return fmt.Appendf(nil, "k%03d%s", i, long) }
	p := testcluster.StartProcess(t, testcluster.ProcessOptions{Splits: []string{"k020"}})
	conn := connect(t, p, 0)
	kv := pb.NewKVClient(conn)
	before := p.Report()
	first := openCall(t, conn, []*pb.WatchCreateRequest{{Key: []byte("k"), RangeEnd: []byte("l")}, {Key: key(7)}})
	if first == nil {
		t.FailNow()
	}
	split(t, p, []byte("k040"))
	ctx := t.Context()
	inParallel(keys, func(i int) {
		if _, err := kv.Put(ctx, &pb.PutRequest{Key: key(i), Value: fmt.Appendf(nil, "%d", i)}); err != nil {
			t.Errorf("put: %v", err)
		}
	})
	got, err := kv.Range(ctx, &pb.RangeRequest{Key: key(10), RangeEnd: key(50), Limit: 35})
	if err != nil {
		t.Fatal(err)
	}
	if got.Count != 40 || len(got.Kvs) != 35 || !got.More {
		t.Errorf("count %d, %d keys, more %t, want 40, 35, true", got.Count, len(got.Kvs), got.More)
	}
	for i, kv := range got.Kvs {
		if !bytes.Equal(kv.Key, key(10+i)) || string(kv.Value) != strconv.Itoa(10+i) {
			t.Errorf("key %d of the range is %q...", 10+i, kv.Key[:4])
		}
	}
	split(t, p, key(30)[:4<<10])
	last, err := kv.Txn(ctx, &pb.TxnRequest{
		Compare: []*pb.Compare{modIs(string(key(25)), 0), modIs("none", 0)},
		Failure: []*pb.RequestOp{putOp(string(key(7)), nil), putOp(string(key(33)), nil), getOp(string(key(45)))},
	})
	if err != nil || last.Succeeded || len(last.Responses) != 3 || last.Responses[2].GetResponseRange().Count != 1 {
		t.Errorf("transaction: %v", err)
	}
	deleted, err := kv.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: key(15), RangeEnd: key(45)})
	if err != nil || deleted.Deleted != 30 {
		t.Fatalf("%v, %v, want 30 deleted", deleted, err)
	}
	first.readUpTo(t, deleted.Header.Revision)
	if first.counts[1] != keys+2+30 || first.counts[2] != 2 {
		t.Errorf("the watchers got %d and %d events, want %d and 2", first.counts[1], first.counts[2], keys+2+30)
	}
	if _, err := kv.Compact(ctx, &pb.CompactionRequest{Revision: deleted.Header.Revision, Physical: true}); err != nil {
		t.Error(err)
	}
	count, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, CountOnly: true})
	if err != nil || count.Count != keys-30 {
		t.Errorf("%v, %v, want %d keys", count, err, keys-30)
	}
	_, err = adminpb.NewAdminClient(conn).SplitRange(ctx, &adminpb.SplitRangeRequest{At: &adminpb.SplitRangeRequest_Key{Key: key(50)}})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a split at a key that no range can begin with: %v", err)
	}
	_, err = kv.Put(ctx, &pb.PutRequest{Key: bytes.Repeat([]byte("x"), 1536*kib)})
	if err == nil {
		t.Error("a key of 1.5 MiB was taken")
	}
	after := comesDownTo(t, p, "keys of 6 MiB and 30 keys deleted", before, 64*mib)
	t.Log(before, "->", after)
}

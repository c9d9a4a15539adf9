package crash

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-kv/hawser/cmd/node"
	"github.com/hawser-kv/hawser/tests/testcluster"
)

// isNoSpace is etcd's answer of a full store.
func isNoSpace(err error) bool {
	return status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "etcdserver: mvcc: database space exceeded")
}

func httpGet(t *testing.T, address, path string) (int, string) {
	t.Helper()
	resp, err := http.Get("http://" + address + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// isFull says whether the server refuses puts for want of space.
func isFull(t *testing.T, address string) bool {
	t.Helper()
	_, err := pb.NewKVClient(at(address).conn(t)).Put(within(t), &pb.PutRequest{Key: []byte("probe"), Value: []byte("v")})
	if err != nil && !isNoSpace(err) {
		t.Fatalf("put: %v", err)
	}
	return err != nil
}

// checkFull checks what a server without space does: it refuses what puts, does
// everything else, and says so wherever it is asked (etcd/X12, etcd/MA1, etcd/MA2).
// Some key "full/..." has to be there.
func checkFull(t *testing.T, address string) {
	t.Helper()
	conn := at(address).conn(t)
	kv, maintenance := pb.NewKVClient(conn), pb.NewMaintenanceClient(conn)
	put := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("x"), Value: []byte("y")}}}
	if _, err := kv.Put(within(t), put.GetRequestPut()); !isNoSpace(err) {
		t.Errorf("put: %v", err)
	}
	if _, err := kv.Txn(within(t), &pb.TxnRequest{Failure: []*pb.RequestOp{put}}); !isNoSpace(err) {
		t.Errorf("transaction with a put: %v", err)
	}
	read, err := kv.Range(within(t), &pb.RangeRequest{Key: []byte("full/"), RangeEnd: []byte("full0"), Limit: 1})
	if err != nil || len(read.Kvs) != 1 {
		t.Fatalf("get: %v, %v", read, err)
	}
	deleted, err := kv.DeleteRange(within(t), &pb.DeleteRangeRequest{Key: read.Kvs[0].Key})
	if err != nil || deleted.Deleted != 1 {
		t.Errorf("delete: %v, %v", deleted, err)
	}
	if _, err := kv.Txn(within(t), &pb.TxnRequest{Success: []*pb.RequestOp{
		{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte("none")}}},
		{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte("none")}}},
	}}); err != nil {
		t.Errorf("transaction without a put: %v", err)
	}
	if deleted != nil {
		if _, err := kv.Compact(within(t), &pb.CompactionRequest{Revision: deleted.Header.Revision}); err != nil {
			t.Errorf("compact: %v", err)
		}
	}
	alarms, err := maintenance.Alarm(within(t), &pb.AlarmRequest{})
	if err != nil || len(alarms.Alarms) != 1 || alarms.Alarms[0].Alarm != pb.AlarmType_NOSPACE || alarms.Alarms[0].MemberID != alarms.Header.MemberId {
		t.Errorf("alarms: %v, %v", alarms, err)
	}
	st, err := maintenance.Status(within(t), &pb.StatusRequest{})
	if err != nil || len(st.Errors) != 1 || !strings.Contains(st.Errors[0], "alarm:NOSPACE") {
		t.Errorf("status: %v, %v", st, err)
	}
	if code, body := httpGet(t, address, "/health"); code != 503 || strings.TrimSpace(body) != `{"health":"false","reason":"ALARM NOSPACE"}` {
		t.Errorf("/health: %d %s", code, body)
	}
	if code, body := httpGet(t, address, "/health?exclude=NOSPACE"); code != 200 {
		t.Errorf("/health?exclude=NOSPACE: %d %s", code, body)
	}
	if code, body := httpGet(t, address, "/readyz"); code != 200 {
		t.Errorf("/readyz: %d %s", code, body)
	}
}

// checkRoom checks that nothing is left of a NOSPACE that has ended by itself.
func checkRoom(t *testing.T, address string) {
	t.Helper()
	maintenance := pb.NewMaintenanceClient(at(address).conn(t))
	alarms, err := maintenance.Alarm(within(t), &pb.AlarmRequest{})
	if err != nil || len(alarms.Alarms) != 0 {
		t.Errorf("alarms: %v, %v", alarms, err)
	}
	st, err := maintenance.Status(within(t), &pb.StatusRequest{})
	if err != nil || len(st.Errors) != 0 {
		t.Errorf("status: %v, %v", st, err)
	}
	if code, body := httpGet(t, address, "/health"); code != 200 {
		t.Errorf("/health: %d %s", code, body)
	}
}

// fillUntilFull puts large values until the server refuses one.
func fillUntilFull(t *testing.T, address string) {
	t.Helper()
	kv := pb.NewKVClient(at(address).conn(t))
	value := make([]byte, 1<<20)
	for i := 0; ; i++ {
		_, _ = rand.NewChaCha8([32]byte{byte(i), byte(i >> 8), 1}).Read(value) // never fails
		_, err := kv.Put(within(t), &pb.PutRequest{Key: fmt.Appendf(nil, "full/%04d", i), Value: value})
		switch {
		case isNoSpace(err):
			return
		case err != nil:
			t.Fatalf("put %d: %v", i, err)
		case i > 2000:
			t.Fatal("two gigabytes, and it is not full")
		}
	}
}

// TestQuotaRefusesPutsUntilThereIsRoom: --quota-backend-bytes.
func TestQuotaRefusesPutsUntilThereIsRoom(t *testing.T) {
	const quota = 48 << 20
	dir := filepath.Join(testcluster.Dir(t), "data")
	p := start(t, dir, "--quota-backend-bytes", fmt.Sprint(quota))
	fillUntilFull(t, p.address)
	checkFull(t, p.address)
	maintenance := pb.NewMaintenanceClient(at(p.address).conn(t))
	st, err := maintenance.Status(within(t), &pb.StatusRequest{})
	if err != nil || st.DbSizeQuota != quota || st.DbSizeInUse < quota-quota/16 {
		t.Errorf("status: %v, %v; quota %d", st, err, quota)
	}

	if out := p.output(); !strings.Contains(out, "room under the quota") || strings.Contains(out, "room on disk") {
		t.Errorf("the quota is used up, the disk is not; the log says\n%s", p.tail(4<<10))
	}

	// Room is made as with etcd, but without a defragmentation, and the alarm ends
	// by itself.
	conn := at(p.address).conn(t)
	deleted, err := pb.NewKVClient(conn).DeleteRange(within(t), &pb.DeleteRangeRequest{Key: []byte("full/"), RangeEnd: []byte("full0")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pb.NewKVClient(conn).Compact(within(t), &pb.CompactionRequest{Revision: deleted.Header.Revision, Physical: true}); err != nil {
		t.Fatal(err)
	}
	await(t, "room after a compaction", func() bool { return !isFull(t, p.address) })
	checkRoom(t, p.address)
	p.stop(t)
}

// TestFullDisk: what the disk has left is what a file system says, here a made-up
// one.
func TestFullDisk(t *testing.T) {
	var free atomic.Uint64
	free.Store(1 << 40)
	cfg := node.Config{}
	cfg.DataDir = filepath.Join(testcluster.Dir(t), "data")
	cfg.ListenClientURLs = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.Tune = func(c *node.CoreConfig) {
		c.Store.FreeBytes = func() (uint64, error) { return free.Load(), nil }
	}
	n, err := node.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	address := n.ClientAddr()
	conn := at(address).conn(t)
	splitAt(t, conn, "full/0005")
	for i := range 10 {
		put(t, address, fmt.Sprintf("full/%04d", i), "v")
	}
	checkRoom(t, address)
	for range 3 {
		free.Store(100 << 20)
		await(t, "the end of the room", func() bool { return isFull(t, address) })
		checkFull(t, address)
		free.Store(10 << 30)
		await(t, "room", func() bool { return !isFull(t, address) })
		checkRoom(t, address)
	}
	if err := n.Close(within(t)); err != nil {
		t.Error(err)
	}
}

// mountSmall mounts a file system of its own with so many bytes.
func mountSmall(t *testing.T, size int64) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a file system needs root")
	}
	dir := testcluster.Dir(t)
	image, mount := filepath.Join(dir, "image"), filepath.Join(dir, "mount")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, size), os.Mkdir(mount, 0o700)); err != nil {
		t.Fatal(err)
	}
	// The journal is small: what is left is for the data.
	for _, command := range [][]string{
		{"mkfs.ext4", "-q", "-m", "0", "-J", "size=8", image},
		{"mount", "-o", "loop", image, mount},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Skipf("%s is not possible here: %v: %s", command[0], err, bytes.TrimSpace(out))
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", mount).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return mount
}

// fillDisk writes a file until the file system has at most left bytes.
func fillDisk(t *testing.T, dir string, left int64) (name string) {
	t.Helper()
	name = filepath.Join(dir, "filler")
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 64<<10)
	for {
		var st syscall.Statfs_t
		if err := syscall.Statfs(dir, &st); err != nil {
			t.Fatal(err)
		}
		if int64(st.Bavail)*st.Bsize <= left {
			return name
		}
		if _, err := f.Write(block); errors.Is(err, syscall.ENOSPC) {
			if len(block) == 1 {
				return name
			}
			block = block[:max(len(block)/16, 1)] // a small one may still fit
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestFullFileSystem fills a real one, first to below the reserve, then to its
// last byte. The server refuses puts in time; should it run into the end of the
// disk after all, it ends loudly, and nothing acknowledged is lost.
func TestFullFileSystem(t *testing.T) {
	mount := mountSmall(t, 768<<20)
	dir := filepath.Join(mount, "data")
	p := start(t, dir)
	const n = 20
	for i := range n {
		put(t, p.address, fmt.Sprintf("full/%04d", i), "v")
	}
	filler := fillDisk(t, mount, 200<<20)
	await(t, "the end of the room", func() bool { return isFull(t, p.address) })
	checkFull(t, p.address)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	await(t, "room", func() bool { return !isFull(t, p.address) })
	checkRoom(t, p.address)

	filler = fillDisk(t, mount, 0)
	await(t, "the end of the room", func() bool { return isFull(t, p.address) })
	kv := pb.NewKVClient(at(p.address).conn(t))
	gone, unknown := map[string]bool{"full/0000": true}, map[string]bool{}
	for i := 1; i < n/2; i++ {
		key := fmt.Sprintf("full/%04d", i)
		if _, err := kv.DeleteRange(within(t), &pb.DeleteRangeRequest{Key: []byte(key)}); err == nil {
			gone[key] = true
		} else {
			unknown[key] = true
		}
	}
	t.Logf("on a disk without a byte: %d deletes answered, %d not", len(gone)-1, len(unknown))
	if len(unknown) == 0 {
		p.kill()
	} else {
		p.awaitFailure(t, "no space left")
	}
	// A start without any room fails, or serves what it can.
	p = launch(t, dir)
	select {
	case <-p.ready:
		p.kill()
	case <-p.exited:
		p.awaitFailure(t, "no space left on device")
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	p = start(t, dir)
	for i := range n {
		key := fmt.Sprintf("full/%04d", i)
		if unknown[key] {
			continue
		}
		if got := get(t, p.address, key); (got == "") != gone[key] {
			t.Errorf("%s is %q; deleted: %v", key, got, gone[key])
		}
	}
	await(t, "room", func() bool { return !isFull(t, p.address) })
	checkRoom(t, p.address)
	p.stop(t)
}

// TestStopOnAFullFileSystem: the engine cannot be flushed, and tries for ever if
// it is told to. A stop in order goes without.
func TestStopOnAFullFileSystem(t *testing.T) {
	mount := mountSmall(t, 768<<20)
	dir := filepath.Join(mount, "data")
	p := start(t, dir)
	put(t, p.address, "before", "v")
	filler := fillDisk(t, mount, 0)
	await(t, "the end of the room", func() bool { return isFull(t, p.address) })
	p.stop(t)
	if n := strings.Count(p.output(), "background error"); n > 0 {
		t.Errorf("the engine failed %d times:\n%s", n, p.tail(4<<10))
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	p = start(t, dir)
	if got := get(t, p.address, "before"); got != "v" {
		t.Errorf("before is %q", got)
	}
	p.stop(t)
}

// TestEndOfTheDisk: deletes are let through on a full disk, and long keys take the
// last of its bytes. The server ends with the disk's error, not with a panic, and
// nothing acknowledged is lost.
func TestEndOfTheDisk(t *testing.T) {
	const keys, keyBytes = 16, 256 << 10
	mount := mountSmall(t, 768<<20)
	dir := filepath.Join(mount, "data")
	p := start(t, dir)
	name := func(i int) string { return fmt.Sprintf("full/%04d/", i) + strings.Repeat("x", keyBytes) }
	for i := range keys {
		put(t, p.address, name(i), "v")
	}
	filler := fillDisk(t, mount, 0)
	await(t, "the end of the room", func() bool { return isFull(t, p.address) })
	kv := pb.NewKVClient(at(p.address).conn(t))
	answered := 0
	for ; answered < keys; answered++ {
		if _, err := kv.DeleteRange(within(t), &pb.DeleteRangeRequest{Key: []byte(name(answered))}); err != nil {
			break
		}
	}
	t.Logf("%d of %d deletes answered", answered, keys)
	if answered == keys {
		t.Fatal("the disk has room for all of them")
	}
	p.awaitFailure(t, "no space left on device")
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	p = start(t, dir)
	for i := range keys {
		if got := get(t, p.address, name(i)); i != answered && (got == "") != (i < answered) {
			t.Errorf("key %d is %q; %d deletes were answered", i, got, answered)
		}
	}
	p.stop(t)
}

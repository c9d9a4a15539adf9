// Command widedelete fills a running server with many small keys, deletes all of them
// in one request beside other clients and a watcher, and prints what each of them
// noticed: how long the delete took, whether its count and its events are right, what
// puts and gets of others waited for, and the memory of the server. It deletes nothing
// that it has not put: with keys below its prefix it does not begin.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

type options struct {
	endpoint string
	keys     int
	prefix   string
	pid      int
	watch    bool
}

func main() {
	var o options
	flag.StringVar(&o.endpoint, "endpoint", "", "client address of the server, required")
	flag.IntVar(&o.keys, "keys", 2_000_000, "keys to delete")
	flag.StringVar(&o.prefix, "prefix", "/hawser-bench/", "prefix of the keys, below which there must be none")
	flag.IntVar(&o.pid, "pid", 0, "process id of the server, to measure its memory")
	flag.BoolVar(&o.watch, "watch", true, "watch the prefix")
	flag.Parse()
	if o.endpoint == "" || o.prefix == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(o); err != nil {
		log.Fatal(err)
	}
}

func run(o options) error {
	ctx := context.Background()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{o.endpoint}, MaxCallRecvMsgSize: 1<<31 - 1})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := unused(ctx, c, o.prefix); err != nil {
		return err
	}
	if err := fill(ctx, c, o); err != nil {
		return err
	}
	alone := load(ctx, c)
	<-time.After(5 * time.Second)
	report("others, alone", alone())
	before := resident(o.pid)

	var watched chan string
	if o.watch {
		watched = make(chan string, 1)
		start, err := c.Get(ctx, "\x00")
		if err != nil {
			return err
		}
		w := c.Watch(clientv3.WithRequireLeader(ctx), o.prefix, clientv3.WithPrefix(), clientv3.WithRev(start.Header.Revision+1), clientv3.WithFragment())
		go func() { watched <- follow(w, o) }()
	}
	peak := watchMemory(o.pid)
	beside := load(ctx, c)
	began := time.Now()
	del, err := c.Delete(ctx, o.prefix, clientv3.WithPrefix())
	took := time.Since(began)
	if err != nil {
		return fmt.Errorf("delete after %s: %w", took, err)
	}
	fmt.Printf("deleted %d keys of %d in %s at revision %d\n", del.Deleted, o.keys, took.Round(time.Millisecond), del.Header.Revision)
	if left, err := c.Get(ctx, o.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly()); err != nil || left.Count != 0 {
		return fmt.Errorf("%d keys are left (%w)", left.Count, err)
	}
	if o.watch {
		fmt.Printf("%s after %s\n", <-watched, time.Since(began).Round(time.Millisecond))
	} else {
		<-time.After(20 * time.Second)
	}
	report("others, beside the delete and its events", beside())
	fmt.Printf("memory: %d MiB before, %d MiB at most\n", before>>20, peak()>>20)
	return nil
}

// others is the prefix of the keys of the clients beside, which are put and stay.
const others = "/hawser-bench-others/"

// unused returns an error if there are keys below the prefix.
func unused(ctx context.Context, c *clientv3.Client, prefix string) error {
	n, err := c.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err == nil && n.Count > 0 {
		err = fmt.Errorf("there are %d keys below %q already: choose another prefix, or an empty server", n.Count, prefix)
	}
	return err
}

func key(o options, i int) string { return fmt.Sprintf("%s%03d/%09d", o.prefix, i%50, i/50) }

func fill(ctx context.Context, c *clientv3.Client, o options) error {
	const perTxn = 100
	var next atomic.Int64
	errs := make(chan error, 32)
	for range 32 {
		go func() {
			for {
				i := int(next.Add(perTxn)) - perTxn
				if i >= o.keys {
					errs <- nil
					return
				}
				var ops []clientv3.Op
				for j := i; j < min(i+perTxn, o.keys); j++ {
					// Neighbours, so that a transaction is in one range.
					n := j/perTxn*perTxn + j%perTxn
					ops = append(ops, clientv3.OpPut(key(o, (n%(o.keys/50))*50+n/(o.keys/50)), "v"))
				}
				if _, err := c.Txn(ctx).Then(ops...).Commit(); err != nil {
					errs <- err
					return
				}
			}
		}()
	}
	for range 32 {
		if err := <-errs; err != nil {
			return err
		}
	}
	n, err := c.Get(ctx, o.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err == nil && n.Count != int64(o.keys) {
		err = fmt.Errorf("%d keys are there, %d were put", n.Count, o.keys)
	}
	return err
}

// load runs puts and gets of other keys until the function it returns is called,
// which returns how long each took.
func load(ctx context.Context, c *clientv3.Client) (stop func() map[string][]time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	var mu sync.Mutex
	took := make(map[string][]time.Duration)
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				k := fmt.Sprintf("%s%d/%d", others, n, i%1000)
				what, began := "put", time.Now()
				var err error
				if i%2 == 0 {
					_, err = c.Put(context.Background(), k, "v")
				} else {
					what = "get"
					_, err = c.Get(context.Background(), k)
				}
				d := time.Since(began)
				if err != nil {
					log.Printf("%s after %s: %v", what, d, err)
				}
				mu.Lock()
				took[what] = append(took[what], d)
				mu.Unlock()
				<-time.After(5 * time.Millisecond)
			}
		})
	}
	return func() map[string][]time.Duration {
		cancel()
		all.Wait()
		return took
	}
}

func report(when string, took map[string][]time.Duration) {
	for _, what := range []string{"put", "get"} {
		d := took[what]
		slices.Sort(d)
		at := func(p float64) time.Duration { return d[int(p*float64(len(d)-1))].Round(100 * time.Microsecond) }
		fmt.Printf("%s: %d %ss, p50 %s, p99 %s, max %s\n", when, len(d), what, at(0.5), at(0.99), at(1))
	}
}

// follow reads events until there is one for each key.
func follow(w clientv3.WatchChan, o options) string {
	n, revision, last := 0, int64(0), ""
	for resp := range w {
		if err := resp.Err(); err != nil {
			return fmt.Sprintf("watch after %d events: %v", n, err)
		}
		for _, e := range resp.Events {
			if k := string(e.Kv.Key); e.Type != clientv3.EventTypeDelete || k <= last || n > 0 && e.Kv.ModRevision != revision {
				return fmt.Sprintf("event %d out of order: %s %q at %d after %q at %d", n, e.Type, k, e.Kv.ModRevision, last, revision)
			} else {
				last, revision = k, e.Kv.ModRevision
			}
			n++
		}
		if n >= o.keys {
			return fmt.Sprintf("watched %d events in order at revision %d", n, revision)
		}
	}
	return fmt.Sprintf("the watch ended after %d events", n)
}

func resident(pid int) int64 {
	if pid == 0 {
		return 0
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		var kb int64
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kb); err == nil {
			return kb << 10
		}
	}
	return 0
}

func watchMemory(pid int) (peak func() int64) {
	stop, done := make(chan struct{}), make(chan int64)
	go func() {
		var most int64
		for {
			most = max(most, resident(pid))
			select {
			case <-stop:
				done <- most
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	return func() int64 { close(stop); return <-done }
}

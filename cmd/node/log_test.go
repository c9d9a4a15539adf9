package node

import (
	"fmt"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hawser-kv/hawser/proto/adminpb"
)

// TestLogDoesNotGrowWithTheRanges: a start says how many replicas there are, and
// has no line for each; a split has one.
func TestLogDoesNotGrowWithTheRanges(t *testing.T) {
	dir := t.TempDir()
	start := func() (*Node, *observer.ObservedLogs) {
		core, logs := observer.New(zap.InfoLevel)
		cfg := Config{Logger: zap.New(core)}
		cfg.DataDir, cfg.ListenClientURLs = dir, anyPort
		n, err := Start(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		return n, logs
	}
	// use makes the leaders of all ranges awake.
	const ranges = 40
	key := func(i int) string { return fmt.Sprintf("k%02d", i) }
	use := func(n *Node) {
		c := dial(t, n)
		for i := range ranges {
			if _, err := c.Put(t.Context(), key(i), "v"); err != nil {
				t.Fatal(err)
			}
		}
	}

	n, logs := start()
	admin := adminpb.NewAdminClient(dial(t, n).ActiveConnection())
	for i := 1; i < ranges; i++ {
		if _, err := admin.SplitRange(t.Context(), &adminpb.SplitRangeRequest{At: &adminpb.SplitRangeRequest_Key{Key: []byte(key(i))}}); err != nil {
			t.Fatal(err)
		}
	}
	use(n)
	closeTest(t, n)
	splits := logs.FilterMessage("split: a range begins").All()
	if len(splits) != ranges-1 {
		t.Errorf("%d lines of %d splits", len(splits), ranges-1)
	}
	if at := splits[0].ContextMap()["at"]; at != `"k01"` {
		t.Errorf("the first split is told to be at %v", at)
	}
	if others := logs.Len() - len(splits); others >= ranges {
		t.Errorf("%d further lines", others)
	}

	n, logs = start()
	use(n)
	closeTest(t, n)
	if logs.Len() >= ranges {
		t.Errorf("a start with %d ranges logs %d lines", ranges, logs.Len())
	}
	found := logs.FilterMessage("found the replicas of this node").All()
	if len(found) != 1 || found[0].ContextMap()["served"] != int64(ranges) || found[0].ContextMap()["not-served"] != int64(0) {
		t.Errorf("summary of the start: %v", found)
	}
}

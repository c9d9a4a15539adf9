package node

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hawser-kv/hawser/proto/adminpb"
)

// scrape returns the node's metrics by name.
func scrape(t *testing.T, n *Node) map[string]*dto.MetricFamily {
	t.Helper()
	return gather(t, n.metrics.Registry())
}

func gather(t *testing.T, from prometheus.Gatherer) map[string]*dto.MetricFamily {
	t.Helper()
	all, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	families := make(map[string]*dto.MetricFamily)
	for _, f := range all {
		families[f.GetName()] = f
	}
	return families
}

// value sums the values of a metric whose labels have all of want ("name=value").
func value(families map[string]*dto.MetricFamily, name string, want ...string) float64 {
	sum := 0.0
	for _, m := range families[name].GetMetric() {
		labels := make(map[string]bool)
		for _, l := range m.Label {
			labels[l.GetName()+"="+l.GetValue()] = true
		}
		matches := true
		for _, w := range want {
			matches = matches && labels[w]
		}
		if matches {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// TestMetricsCountWhatWasDone reads the metrics after a known load over two ranges.
// A transaction over both reads in each what it changes.
func TestMetricsCountWhatWasDone(t *testing.T) {
	n := startTest(t, t.TempDir())
	defer closeTest(t, n)
	c := dial(t, n)
	admin := adminpb.NewAdminClient(c.ActiveConnection())
	split, err := admin.SplitRange(t.Context(), &adminpb.SplitRangeRequest{At: &adminpb.SplitRangeRequest_Key{Key: []byte("m")}})
	if err != nil {
		t.Fatal(err)
	}
	left, right := fmt.Sprintf("range=%d", split.Left.RangeId), fmt.Sprintf("range=%d", split.Right.RangeId)

	events := c.Watch(t.Context(), "a", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	<-events
	const puts = 7
	for range puts {
		if _, err := c.Put(t.Context(), "a", "12345"); err != nil {
			t.Fatal(err)
		}
	}
	for seen := 0; seen < puts; {
		r, ok := <-events
		if !ok {
			t.Fatal("the watch ended")
		}
		seen += len(r.Events)
	}
	both := []clientv3.Op{clientv3.OpPut("a", "12345"), clientv3.OpPut("z", "1")}
	last, err := c.Txn(t.Context()).Then(both...).Commit()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Delete(t.Context(), "z"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := c.Get(t.Context(), "", clientv3.WithFromKey()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Get(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Compact(t.Context(), last.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}

	m := scrape(t, n)
	for _, tc := range []struct {
		want   float64
		name   string
		labels []string
	}{
		{puts, "etcd_server_apply_duration_seconds", []string{"version=v3", "op=Put", "success=true"}},
		{1, "etcd_server_apply_duration_seconds", []string{"op=DeleteRange", "success=true"}},
		{0, "etcd_server_apply_duration_seconds", []string{"success=false"}},
		{puts, "etcd_debugging_mvcc_db_compaction_keys_total", nil},
		{1, "etcd_debugging_mvcc_db_compaction_total_duration_milliseconds", nil},
		{0, "etcd_debugging_mvcc_pending_events_total", nil},
		{0, "etcd_server_heartbeat_send_failures_total", nil},
		{puts, "hawser_range_writes_total", []string{left}},
		{1, "hawser_range_writes_total", []string{right}},
		{puts + 1, "hawser_range_versions_total", []string{left}},
		{2, "hawser_range_versions_total", []string{right}},
		{6 * (puts + 1), "hawser_range_version_bytes_total", []string{left}},
		{5, "hawser_range_reads_total", []string{left}},
		{4, "hawser_range_reads_total", []string{right}},
		{5 * 6, "hawser_range_read_bytes_total", []string{left}},
		{0, "hawser_range_read_bytes_total", []string{right}},
		{7, "hawser_engine_level_files", nil},
	} {
		if m[tc.name] == nil {
			t.Errorf("no %s", tc.name)
			continue
		}
		got := value(m, tc.name, tc.labels...)
		if tc.name == "hawser_engine_level_files" {
			got = float64(len(m[tc.name].Metric))
		}
		if got != tc.want {
			t.Errorf("%s%v = %v, want %v", tc.name, tc.labels, got, tc.want)
		}
	}
	for _, name := range []string{
		"etcd_disk_wal_write_duration_seconds", "etcd_disk_backend_commit_duration_seconds", "etcd_debugging_mvcc_db_compaction_last",
		"etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds",
		"hawser_range_write_seconds_total", "hawser_range_read_seconds_total", "hawser_disk_free_bytes", "hawser_engine_log_bytes",
	} {
		if value(m, name) <= 0 {
			t.Errorf("%s = %v, want more than 0", name, value(m, name))
		}
	}
	// A response's events are counted after it was sent.
	for value(m, "etcd_debugging_mvcc_events_total") < puts+1 {
		if t.Context().Err() != nil {
			t.Fatal("the events that were sent are not counted")
		}
		m = scrape(t, n)
	}
	// Without a quota the disk is the bound.
	quota, size := value(m, "etcd_server_quota_backend_bytes"), value(m, "etcd_mvcc_db_total_size_in_bytes")
	if disk := value(m, "hawser_disk_total_bytes"); quota <= size || quota > disk+size {
		t.Errorf("quota %v with %v bytes in use on a disk of %v", quota, size, disk)
	}
}

func TestOnlyTheBusiestRangesHaveMetrics(t *testing.T) {
	var s loads
	const ranges = 10_000
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for id := range uint64(ranges) {
				s.of(id).wrote(time.Microsecond)
			}
		})
	}
	writers.Wait()
	for id := uint64(5000); id < 5000+busiestRanges; id++ {
		s.of(id).read(time.Microsecond)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(&s)
	series := 0
	for _, f := range gather(t, registry) {
		series += len(f.Metric)
	}
	if want := 7 * busiestRanges; series != want {
		t.Errorf("%d series, want %d", series, want)
	}
	ids := s.busiestIDs()
	for i, id := range ids {
		if id != 5000+uint64(i) {
			t.Fatalf("the busiest are %v", ids)
		}
	}
	if got := s.of(17).writes.Load(); got != 4 {
		t.Errorf("%d writes counted of 4 side by side", got)
	}

	// What was busy long ago gives way.
	s.scrape.Lock()
	defer s.scrape.Unlock()
	s.of(3).applied(1, 10)
	for range 10 {
		s.rank(1)
		s.of(3).applied(1, 10)
	}
	if got := s.rank(1)[0].id; got != 3 {
		t.Errorf("the busiest now is %d, want 3", got)
	}
	s.of(maxLoads+1).applied(1, 1) // is not counted, and takes no memory
	if pages := len(*s.pages.Load()); pages > ranges/256+1 {
		t.Errorf("%d pages", pages)
	}
}

func TestStallsAreCounted(t *testing.T) {
	var s stalls
	for range 2 {
		s.set(true)
		s.set(true) // the reason changes
		if _, total := s.sum(); total <= 0 {
			t.Error("a stall under way takes no time")
		}
		s.set(false)
		s.set(false)
	}
	if count, _ := s.sum(); count != 2 {
		t.Errorf("%d stalls, want 2", count)
	}
}

func BenchmarkLoadOfARange(b *testing.B) {
	var s loads
	s.of(300)
	b.ReportAllocs()
	for b.Loop() {
		s.of(300).wrote(time.Microsecond)
	}
}

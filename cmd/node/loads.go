package node

import (
	"cmp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// busiestRanges is how many ranges have metrics of their own: the metrics of
// thousands would be the largest part of a monitoring system's memory.
const busiestRanges = 100

// load is what a range of this node has done since the start of the process.
type load struct {
	// writes were answered, by the range's leader on this node.
	writes, writeNanoseconds atomic.Int64
	// versions were applied, of writes in one range and in several.
	versions, versionBytes atomic.Int64
	// reads are views of the range that were opened.
	reads, readNanoseconds atomic.Int64
	readBytes              atomic.Int64

	// score ranks the ranges: what was done between two scrapes, half of the
	// scrape before, and so on. seen is what was done up to the last one. Guarded by
	// loads.scrape.
	score float64
	seen  int64
}

func (l *load) wrote(took time.Duration) {
	l.writes.Add(1)
	l.writeNanoseconds.Add(int64(took))
}

func (l *load) applied(versions, bytes int) {
	l.versions.Add(int64(versions))
	l.versionBytes.Add(int64(bytes))
}

func (l *load) read(took time.Duration) {
	l.reads.Add(1)
	l.readNanoseconds.Add(int64(took))
}

// loads has the load of each range of this node, and is the collector of those of
// the busiest. Ids of ranges are small numbers, given one after the other, so it is
// a table in pages: who counts takes no lock and allocates nothing.
type loads struct {
	pages atomic.Pointer[[]*loadPage]
	grow  sync.Mutex

	scrape struct {
		sync.Mutex
		at     time.Time
		ranked []rankedLoad
	}
}

type loadPage [256]atomic.Pointer[load]

// maxLoads bounds the table. Ranges behind it have no load.
const maxLoads = 1 << 22

// of returns the load of a range. Safe for concurrent use.
func (s *loads) of(rangeID uint64) *load {
	if pages := s.pages.Load(); pages != nil && rangeID/256 < uint64(len(*pages)) {
		if l := (*pages)[rangeID/256][rangeID%256].Load(); l != nil {
			return l
		}
	}
	return s.add(rangeID)
}

func (s *loads) add(rangeID uint64) *load {
	if rangeID >= maxLoads {
		return new(load)
	}
	s.grow.Lock()
	defer s.grow.Unlock()
	var pages []*loadPage
	if p := s.pages.Load(); p != nil {
		pages = *p
	}
	if rangeID/256 >= uint64(len(pages)) {
		pages = slices.Clone(pages)
		for rangeID/256 >= uint64(len(pages)) {
			pages = append(pages, new(loadPage))
		}
		s.pages.Store(&pages)
	}
	slot := &pages[rangeID/256][rangeID%256]
	if slot.Load() == nil {
		slot.Store(new(load))
	}
	return slot.Load()
}

type rankedLoad struct {
	id uint64
	*load
}

// sameScrape is how long a ranking counts for: the collectors of one scrape see the
// same ranges.
const sameScrape = 500 * time.Millisecond

// busiest returns the ranges that did most lately, at most busiestRanges.
func (s *loads) busiest() []rankedLoad {
	s.scrape.Lock()
	defer s.scrape.Unlock()
	if now := time.Now(); s.scrape.ranked == nil || now.Sub(s.scrape.at) > sameScrape {
		s.scrape.ranked, s.scrape.at = s.rank(busiestRanges), now
	}
	return s.scrape.ranked
}

// rank ranks the ranges and begins a new interval. The caller holds scrape.
func (s *loads) rank(n int) []rankedLoad {
	pages := s.pages.Load()
	if pages == nil {
		return nil
	}
	var all []rankedLoad
	for i, page := range *pages {
		for j := range page {
			l := page[j].Load()
			if l == nil {
				continue
			}
			done := l.writes.Load() + l.versions.Load() + l.reads.Load()
			l.score = l.score/2 + float64(done-l.seen)
			l.seen = done
			all = append(all, rankedLoad{uint64(i*256 + j), l})
		}
	}
	slices.SortFunc(all, func(a, b rankedLoad) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.id, b.id))
	})
	return slices.Clip(all[:min(n, len(all))])
}

// busiestIDs returns the ids of busiest.
func (s *loads) busiestIDs() []uint64 {
	var ids []uint64
	for _, l := range s.busiest() {
		ids = append(ids, l.id)
	}
	return ids
}

var (
	descRangeWrites       = rangeDesc("writes_total", "Writes in this range alone that were answered.")
	descRangeWriteSeconds = rangeDesc("write_seconds_total", "Time that these writes took, from the range's queue until applied.")
	descRangeVersions     = rangeDesc("versions_total", "Versions of keys that were applied, tombstones included.")
	descRangeVersionBytes = rangeDesc("version_bytes_total", "Bytes of keys and values of these versions.")
	descRangeReads        = rangeDesc("reads_total", "Reads of the range; one over several ranges counts in each.")
	descRangeReadSeconds  = rangeDesc("read_seconds_total", "Time that these reads took in the engine.")
	descRangeReadBytes    = rangeDesc("read_bytes_total", "Bytes of keys and values that these reads returned.")
)

func rangeDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("hawser_range_"+name, help+" The busiest ranges of this node only.", []string{"range"}, nil)
}

// Describe sends nothing: which ranges there are changes.
func (s *loads) Describe(chan<- *prometheus.Desc) {}

// Collect sends the metrics of the busiest ranges.
func (s *loads) Collect(ch chan<- prometheus.Metric) {
	for _, l := range s.busiest() {
		label := strconv.FormatUint(l.id, 10)
		counter := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, label)
		}
		counter(descRangeWrites, float64(l.writes.Load()))
		counter(descRangeWriteSeconds, time.Duration(l.writeNanoseconds.Load()).Seconds())
		counter(descRangeVersions, float64(l.versions.Load()))
		counter(descRangeVersionBytes, float64(l.versionBytes.Load()))
		counter(descRangeReads, float64(l.reads.Load()))
		counter(descRangeReadSeconds, time.Duration(l.readNanoseconds.Load()).Seconds())
		counter(descRangeReadBytes, float64(l.readBytes.Load()))
	}
}

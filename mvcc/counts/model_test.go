package counts

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"sort"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// model is the keyspace as a plain list of changes. It is also the Scanner: it
// shows what is committed, as MVCC versions do.
type model struct {
	keys   map[string][]keyChange // per key in growing revisions
	hidden map[string]int64       // per key, the first revision whose batch is not committed
	scans  int
}

func newModel() *model {
	return &model{keys: map[string][]keyChange{}, hidden: map[string]int64{}}
}

func (m *model) add(key string, rev int64, delta int64) {
	m.keys[key] = append(m.keys[key], keyChange{[]byte(key), rev, delta})
}

func (m *model) live(key string) bool {
	var n int64
	for _, c := range m.keys[key] {
		n += c.delta
	}
	return n > 0
}

func (m *model) sorted(start, end []byte) []string {
	var out []string
	for k := range m.keys {
		if bytes.Compare([]byte(k), start) >= 0 && (end == nil || bytes.Compare([]byte(k), end) < 0) {
			out = append(out, k)
		}
	}
	sort.Strings(out)
	return out
}

// count is what Index.Count must say.
func (m *model) count(start, end []byte, rev int64) int64 {
	var n int64
	for k, list := range m.keys {
		if bytes.Compare([]byte(k), start) < 0 || end != nil && bytes.Compare([]byte(k), end) >= 0 {
			continue
		}
		for _, c := range list {
			if c.rev <= rev {
				n += c.delta
			}
		}
	}
	return n
}

func (m *model) CountAt(start, end []byte, rev int64) (int64, error) {
	m.scans++
	return m.count(start, end, rev), nil
}

func (m *model) History(start, end []byte, after int64, fn func(key []byte, rev int64, delta int) error) error {
	for _, k := range m.sorted(start, end) {
		var before int64
		// Newest first, as an engine has it.
		for _, c := range slices.Backward(m.keys[k]) {
			hidden := m.hidden[k]
			switch {
			case hidden != 0 && c.rev >= hidden:
			case c.rev <= after:
				before += c.delta
			default:
				if err := fn(c.key, c.rev, int(c.delta)); err != nil {
					return err
				}
			}
		}
		if before > 0 {
			if err := fn([]byte(k), after, 1); err != nil {
				return err
			}
		}
	}
	return nil
}

// removed drops what the keys of a span have.
func (m *model) removed(start, end []byte) {
	for _, k := range m.sorted(start, end) {
		delete(m.keys, k)
	}
}

func mustCount(t testing.TB, x *Index, start, end []byte, rev int64, scan Scanner) int64 {
	t.Helper()
	n, err := x.Count(start, end, rev, scan)
	if err != nil {
		t.Fatalf("Count(%q, %q, %d): %v", start, end, rev, err)
	}
	return n
}

// check tests the invariants that hold between any two calls.
func (x *Index) check(t testing.TB) {
	t.Helper()
	var before *run
	for _, p := range x.mu.pages {
		if len(p.runs) == 0 || len(p.runs) > maxPageRuns {
			t.Fatalf("page of %d runs", len(p.runs))
		}
		var count, asOf int64
		for _, r := range p.runs {
			count += r.count
			asOf = max(asOf, r.asOf)
			if r.gone {
				t.Fatalf("run %q is gone", r.start)
			}
			if r.dirty && !p.dirty {
				t.Fatalf("run %q is dirty, its page is not", r.start)
			}
			if before == nil && len(r.start) != 0 || before != nil && bytes.Compare(before.start, r.start) >= 0 {
				t.Fatalf("run %q in the wrong place", r.start)
			}
			if before != nil && before.maxKey != nil && bytes.Compare(before.maxKey, r.start) >= 0 {
				t.Fatalf("run %q reaches into %q", before.start, r.start)
			}
			if r.minKey != nil && bytes.Compare(r.minKey, r.start) < 0 {
				t.Fatalf("run %q knows of %q", r.start, r.minKey)
			}
			if r.count < r.hist.sum || r.hist.newest() > r.asOf {
				t.Fatalf("run %q: count %d, history %d up to %d, as of %d", r.start, r.count, r.hist.sum, r.hist.newest(), r.asOf)
			}
			if !r.stored && !r.dirty {
				t.Fatalf("run %q is neither stored nor dirty", r.start)
			}
			before = r
		}
		if p.count != count || p.asOf != asOf {
			t.Fatalf("page %q: %d as of %d, its runs %d as of %d", p.runs[0].start, p.count, p.asOf, count, asOf)
		}
	}
}

// starts returns where runs begin.
func (x *Index) starts() []string {
	var out []string
	for _, p := range x.mu.pages {
		for _, r := range p.runs {
			out = append(out, string(r.start))
		}
	}
	return out
}

func apply(t testing.TB, x *Index, b *pebble.Batch, rev int64, changes ...Change) {
	t.Helper()
	if err := x.Apply(b, rev, changes); err != nil {
		t.Fatal(err)
	}
}

// engine is a Pebble engine that can lose what was not synced.
type engine struct {
	fs *vfs.MemFS
	db *pebble.DB
}

func openEngine(t testing.TB, fs *vfs.MemFS) *engine {
	t.Helper()
	db, err := pebble.Open("db", &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatNewest, Logger: quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	return &engine{fs, db}
}

func (e *engine) checkpoint(t testing.TB, x *Index, applied int64, sync bool) {
	t.Helper()
	b := e.db.NewBatch()
	defer func() { _ = b.Close() }()
	opts := pebble.NoSync
	if sync {
		opts = pebble.Sync
	}
	if err := x.Checkpoint(b, applied, func() error { return b.Commit(opts) }); err != nil {
		t.Fatal(err)
	}
}

type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(format string, args ...any) {
	panic(format)
}

var errScan = errors.New("scan failed")

// failing is a Scanner that fails.
type failing struct{}

func (failing) CountAt(_, _ []byte, _ int64) (int64, error) { return 0, errScan }
func (failing) History(_, _ []byte, _ int64, _ func([]byte, int64, int) error) error {
	return errScan
}

const newest = math.MaxInt64

package compat

import (
	"fmt"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/codes"
)

// stats counts what a run has met, in the reference's answers: a run without errors, events or nested transactions has shown little.
type stats struct {
	kinds map[Kind]int
	codes map[codes.Code]int
	// texts counts error texts, with numbers cut off.
	texts map[string]int
	// seen counts what is worth meeting, by a name for people.
	seen map[string]int
	// watchers created, events compared, older answers seen (D2), progress requests that had to be repeated.
	watchers, events, stale, progressRepeats int
}

func newStats() stats {
	return stats{kinds: make(map[Kind]int), codes: make(map[codes.Code]int), texts: make(map[string]int), seen: make(map[string]int)}
}

// wanted are what a run of the default length must have met to be worth its time, by the names in seen and texts.
var wanted = []string{
	"range with more", "range of many keys", "delete of nothing", "delete of several keys",
	"txn succeeded", "txn failed", "txn nested in two others", "txn with many responses",
	"watch catching up", "watch cancelled by compaction", "watch fragment", "watch response of several events", "prev_kv", "prev_kv that is compacted",
	"etcdserver: key is not provided", "etcdserver: key not found", "etcdserver: value is provided", "etcdserver: lease is provided",
	"etcdserver: requested lease not found", "etcdserver: duplicate key given in txn request", "etcdserver: too many operations in txn request",
	"etcdserver: invalid sort option", "etcdserver: request is too large", "grpc: received message larger than max",
	"etcdserver: mvcc: required revision has been compacted", "etcdserver: mvcc: required revision is a future revision",
	"RangeStream does not support custom sort orders", "RangeStream does not support revision filters",
	"watch: etcdserver: mvcc: required revision has been compacted", "watch: mvcc: watcher range is empty",
	"watch: mvcc: duplicate watch ID provided on the WatchStream",
}

// missing returns those of wanted that the run has not met.
func (s *stats) missing() []string {
	var missing []string
	for _, name := range wanted {
		if s.seen[name]+s.texts[name] == 0 {
			missing = append(missing, name)
		}
	}
	return missing
}

func (s *stats) note(a *answer) {
	s.codes[a.code]++
	if a.code != codes.OK {
		text, _, _ := strings.Cut(a.text, " (")
		s.texts[text]++
	}
	switch response := a.message.(type) {
	case *pb.RangeResponse:
		s.noteIf("range with more", response.More)
		s.noteIf("range of many keys", len(response.Kvs) > 50)
	case *pb.TxnResponse:
		s.noteTxn(response, 0)
	case *pb.DeleteRangeResponse:
		s.noteIf("delete of several keys", response.Deleted > 1)
		s.noteIf("delete of nothing", response.Deleted == 0)
	}
}

func (s *stats) noteTxn(response *pb.TxnResponse, depth int) {
	s.noteIf("txn succeeded", response.Succeeded)
	s.noteIf("txn failed", !response.Succeeded)
	s.noteIf("txn nested in two others", depth == 2)
	s.noteIf("txn with many responses", len(response.Responses) > 100)
	for _, op := range response.Responses {
		if nested := op.GetResponseTxn(); nested != nil {
			s.noteTxn(nested, depth+1)
		}
	}
}

func (s *stats) noteIf(what string, condition bool) {
	if condition {
		s.seen[what]++
	}
}

// noteWatcher counts what the reference has sent to a watcher.
func (s *stats) noteWatcher(w *watcher, responses []*pb.WatchResponse) {
	for _, response := range responses {
		s.noteIf("watch fragment", response.Fragment)
		s.noteIf("watch cancelled by compaction", response.CompactRevision != 0)
		s.noteIf("watch catching up", w.catchingUp && len(response.Events) > 0)
		s.noteIf("watch response of several events", len(response.Events) > 1)
		for _, e := range response.Events {
			s.noteIf("prev_kv", e.PrevKv != nil)
			s.noteIf("prev_kv that is compacted", e.PrevKv == nil && w.request.PrevKv && e.Type == mvccpb.Event_DELETE)
		}
	}
}

func (s stats) String() string {
	var kinds, outcomes []string
	for kind, n := range s.kinds {
		kinds = append(kinds, fmt.Sprintf("%s %d", kind, n))
	}
	for code, n := range s.codes {
		outcomes = append(outcomes, fmt.Sprintf("%s %d", code, n))
	}
	return fmt.Sprintf("steps: %s; answers: %s; %d watchers, %d events compared; %d older answers; %d progress requests repeated\nseen: %s\nerrors: %s",
		sorted(kinds), sorted(outcomes), s.watchers, s.events, s.stale, s.progressRepeats, countedNames(s.seen), countedNames(s.texts))
}

func countedNames(counts map[string]int) string {
	var parts []string
	for name, n := range counts {
		parts = append(parts, fmt.Sprintf("%s %d", name, n))
	}
	return sorted(parts)
}

func sorted(parts []string) string {
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

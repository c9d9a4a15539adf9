package history

import (
	"fmt"
	"hash/maphash"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
)

// Linearizable checks with porcupine that the answers are those of one etcd that
// does one request at a time, each between its call and its return (history/K1, history/K2, history/K3).
// It knows nothing of watches, but for one thing: whether, and with which
// revision, a request of unknown fate was applied, is read from the truth.
//
// While nothing fails each revision is exactly one above the one before. From a
// crash until the first request that was asked for after it, revisions may leave
// gaps (revisions.md section 1); they never repeat.
//
// limit bounds the search; reaching it is an error, for then nothing is shown.
func Linearizable(r *Run, limit time.Duration) error {
	ops, err := operations(r)
	if err != nil {
		return err
	}
	m := model()
	switch porcupine.CheckOperationsTimeout(m, ops, limit) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("linearizability of %d operations is not decided within %v", len(ops), limit)
	}
	_, info := porcupine.CheckOperationsVerbose(m, ops, limit)
	return fmt.Errorf("the history is not linearizable: %s", explain(ops, info))
}

// input is one operation as the model takes it. Output is not used: an
// operation holds its answer.
type input struct {
	op *Op
	// answer is op's, without what the model does not know; nil if it has none.
	answer proto.Message
	// header is the revision in the answer; of a request of unknown fate the one
	// at which the truth has it.
	header int64
	// crash: the server crashed; there is no op.
	crash bool
	// fresh: asked for after the last crash before it.
	fresh bool
	// steps are the results of step by state: the search comes back to the same
	// ones again and again. Used by one goroutine.
	steps map[stateKey]*keyspace
}

// stateKey is what tells states apart.
type stateKey struct {
	hash           uint64
	rev, compacted int64
	loose          bool
}

// forever is when a request of unknown fate ends.
const forever = 1 << 62

// operations are the run's operations for porcupine.
func operations(r *Run) ([]porcupine.Operation, error) {
	truth, err := NewTruth(r.Truth)
	if err != nil {
		return nil, err
	}
	var ops []porcupine.Operation
	for _, c := range r.Crashes {
		ops = append(ops, porcupine.Operation{Input: &input{crash: true}, Call: c.Down, Return: c.Up})
	}
	at := appliedAt(truth, r.Ops)
	for _, o := range r.Ops {
		in := &input{op: o, fresh: true}
		for _, c := range r.Crashes {
			// Of one that ended before the crash it does not matter.
			if o.Call < c.Up && o.Return > c.Down {
				in.fresh = false
			}
		}
		end := o.Return
		switch o.Outcome {
		case OK:
			in.answer, in.header = clean(o.Answer), o.header()
		case Refused:
			if o.Refusal == OtherRefusal {
				continue // it did nothing, and shows nothing
			}
		default:
			if in.header = at[o]; in.header == 0 && o.Compact == nil {
				continue // not applied: it would have been seen
			}
			in.fresh = false
			end = forever
		}
		ops = append(ops, porcupine.Operation{ClientId: o.Client, Input: in, Call: o.Call, Return: end})
	}
	return ops, nil
}

// appliedAt finds the revisions at which requests of unknown fate were applied.
// Values are unique, so a put has one; deletes that are alike may be mistaken
// for each other, which makes no difference to what they did.
func appliedAt(t *Truth, ops []*Op) map[*Op]int64 {
	at := map[*Op]int64{}
	answered := map[int64]bool{}
	var unknown []*Op
	for _, o := range ops {
		switch {
		case o.Outcome == Unknown && o.writes():
			unknown = append(unknown, o)
		case o.Outcome == OK && o.writes():
			if _, effects := t.apply(o, o.header()-1); len(effects) > 0 && sameEvents(effects, t.events[o.header()]) {
				answered[o.header()] = true
			}
		}
	}
	for r := int64(2); r <= t.last; r++ {
		if len(t.events[r]) == 0 || answered[r] {
			continue
		}
		for _, o := range unknown {
			if at[o] != 0 {
				continue
			}
			if _, effects := t.apply(o, r-1); sameEvents(effects, t.events[r]) {
				at[o] = r
				break
			}
		}
	}
	return at
}

// keyspace is a state of the model: what one etcd holds. It is never changed.
type keyspace struct {
	rev       int64
	compacted int64
	// loose: since a crash nothing was answered that was asked for after it;
	// the next revision may be any higher one.
	loose bool
	live  []*mvccpb.KeyValue // in key order
	// before is the state at the revision before, nil at the first.
	before *keyspace
	// hash of the whole history up to here.
	hash uint64
}

// at returns the state at a revision that is not above the state's.
func (k *keyspace) at(rev int64) *keyspace {
	for k.rev > rev && k.before != nil {
		k = k.before
	}
	return k
}

func (k *keyspace) find(key string) (int, bool) {
	return slices.BinarySearchFunc(k.live, key, func(kv *mvccpb.KeyValue, key string) int {
		return strings.Compare(string(kv.Key), key)
	})
}

func (k *keyspace) get(key string, rev int64) *mvccpb.KeyValue {
	k = k.at(rev)
	if i, ok := k.find(key); ok {
		return k.live[i]
	}
	return nil
}

func (k *keyspace) scan(start, end string, rev int64) []*mvccpb.KeyValue {
	k = k.at(rev)
	from, _ := k.find(start)
	var kvs []*mvccpb.KeyValue
	for _, kv := range k.live[from:] {
		if !inside(string(kv.Key), start, end) {
			break
		}
		kvs = append(kvs, kv)
	}
	return kvs
}

// write returns the state after events at a revision.
func (k *keyspace) write(rev int64, events []Event) *keyspace {
	next := &keyspace{rev: rev, compacted: k.compacted, loose: k.loose, live: slices.Clone(k.live), before: k}
	var h maphash.Hash
	h.SetSeed(hashSeed)
	fmt.Fprintf(&h, "%d %d", k.hash, rev)
	for _, e := range events {
		i, found := next.find(string(e.Kv.Key))
		switch {
		case e.Delete && found:
			next.live = slices.Delete(next.live, i, i+1)
		case found:
			next.live[i] = e.Kv
		case !e.Delete:
			next.live = slices.Insert(next.live, i, e.Kv)
		}
		fmt.Fprintf(&h, " %t %q %q", e.Delete, e.Kv.Key, e.Kv.Value)
	}
	next.hash = h.Sum64()
	return next
}

var hashSeed = maphash.MakeSeed()

// settled returns the state after an answer: one to a fresh request ends the
// time in which revisions may leave gaps.
func (k *keyspace) settled(in *input) *keyspace {
	if !k.loose || !in.fresh {
		return k
	}
	next := *k
	next.loose = false
	return &next
}

func model() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return &keyspace{rev: 1} },
		Step: func(state, in, _ any) (bool, any) {
			next := state.(*keyspace).stepOnce(in.(*input))
			return next != nil, next
		},
		Equal: func(a, b any) bool { return a.(*keyspace).key() == b.(*keyspace).key() },
		Hash:  func(a any) uint64 { return a.(*keyspace).hash },
	}
}

func (k *keyspace) key() stateKey { return stateKey{k.hash, k.rev, k.compacted, k.loose} }

// stepOnce is step, evaluated once for a state.
func (k *keyspace) stepOnce(in *input) *keyspace {
	if !in.crash && in.op.Outcome != Refused && !k.loose && in.header > k.rev+1 {
		return nil // of most there is no need to remember that
	}
	if next, ok := in.steps[k.key()]; ok {
		return next
	}
	next := k.step(in)
	if in.steps == nil {
		in.steps = map[stateKey]*keyspace{}
	}
	in.steps[k.key()] = next
	return next
}

// step does one operation; nil if it cannot come next.
func (k *keyspace) step(in *input) *keyspace {
	o := in.op
	switch {
	case in.crash:
		next := *k
		next.loose = true
		return &next
	case o.Outcome == Refused:
		return k.refuse(o)
	case o.Compact != nil && o.Outcome == Unknown:
		return k.perhapsCompact(o.Compact.Revision)
	case o.Compact != nil:
		return k.compact(in)
	case o.Range != nil && o.Range.Serializable:
		return k.readStale(in)
	}
	if in.header == k.rev+1 || k.loose && in.header > k.rev {
		// As a write: values and answer must be those of this state.
		answer, effects := apply(k, o, in.header-1)
		if o.writes() && len(effects) > 0 && (in.answer == nil || proto.Equal(answer, in.answer)) {
			return k.write(in.header, effects).settled(in)
		}
	}
	if in.header != k.rev && !(k.loose && in.header > k.rev) {
		return nil
	}
	answer, effects := apply(k, o, in.header)
	if len(effects) > 0 || !proto.Equal(answer, in.answer) || !k.readable(in) {
		return nil
	}
	return k.moved(in)
}

// moved is the state after a read that shows header as the current revision.
func (k *keyspace) moved(in *input) *keyspace {
	if in.header > k.rev {
		k = k.write(in.header, nil)
	}
	return k.settled(in)
}

// readable reports whether the revision that a read names is still there.
func (k *keyspace) readable(in *input) bool {
	r := in.op.Range
	return r == nil || r.Revision <= 0 || r.Revision >= k.compacted && r.Revision <= in.header
}

// readStale: a serializable read shows some earlier state (history/K3).
func (k *keyspace) readStale(in *input) *keyspace {
	if in.header > k.rev && !k.loose || !k.readable(in) {
		return nil
	}
	if answer, _ := apply(k, in.op, in.header); !proto.Equal(answer, in.answer) {
		return nil
	}
	if in.header > k.rev {
		return k.moved(in)
	}
	return k
}

func (k *keyspace) compact(in *input) *keyspace {
	rev := in.op.Compact.Revision
	if rev <= k.compacted || rev > in.header || in.header != k.rev && !(k.loose && in.header > k.rev) {
		return nil
	}
	next := *k.moved(in)
	next.compacted = rev
	return &next
}

// perhapsCompact: a compaction of unknown fate, which no event shows. It comes
// last of all if it was not done.
func (k *keyspace) perhapsCompact(rev int64) *keyspace {
	if rev <= k.compacted || rev > k.rev {
		return k
	}
	next := *k
	next.compacted = rev
	return &next
}

// refuse: was it right to refuse?
func (k *keyspace) refuse(o *Op) *keyspace {
	right := false
	switch {
	case o.Range != nil && o.Refusal == RefusedCompacted:
		right = o.Range.Revision < k.compacted
	case o.Range != nil:
		right = o.Range.Revision > k.rev
	case o.Compact != nil && o.Refusal == RefusedCompacted:
		right = o.Compact.Revision <= k.compacted
	case o.Compact != nil:
		right = o.Compact.Revision > k.rev
	}
	if !right {
		return nil
	}
	return k
}

// explain shows where the longest serial history that porcupine found ends, and
// what does not fit behind it.
func explain(ops []porcupine.Operation, info porcupine.LinearizationInfo) string {
	var longest []int
	for _, partition := range info.PartialLinearizations() {
		for _, l := range partition {
			if len(l) > len(longest) {
				longest = l
			}
		}
	}
	in := map[int]bool{}
	state := &keyspace{rev: 1}
	for _, id := range longest {
		in[id] = true
		state = state.step(ops[id].Input.(*input))
	}
	// The one that must come next is among those that were asked for before any
	// of the others returned.
	var rest []porcupine.Operation
	end := int64(forever)
	for id, op := range ops {
		if !in[id] {
			rest = append(rest, op)
			end = min(end, op.Return)
		}
	}
	sort.Slice(rest, func(i, j int) bool { return rest[i].Return < rest[j].Return })
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d operations have an order that ends at revision %d (compacted %d); none of these can be next:",
		len(longest), len(ops), state.rev, state.compacted)
	for i, op := range rest {
		if op.Call > end || i > 20 {
			break
		}
		fmt.Fprintf(&b, "\n  %v", op.Input.(*input))
	}
	return b.String()
}

func (in *input) String() string {
	if in.crash {
		return "crash"
	}
	if in.op.Outcome == Unknown {
		return fmt.Sprintf("%v, seen at revision %d", in.op, in.header)
	}
	return in.op.String()
}

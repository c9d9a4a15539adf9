package simulation

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/mvcc/keys"
)

// Plant is a bug that is put into a run to show that the checkers find it: one
// for each class in etcd's record that one node can have (the number is
// etcd's issue).
type Plant int

// The planted bugs.
const (
	NoPlant Plant = iota
	// AckBeforeSync: 14370.
	AckBeforeSync
	// AppliedIndexWithoutEffects: 13766, and the 3.5 inconsistency.
	AppliedIndexWithoutEffects
	// ProgressAheadOfEvents: 15220.
	ProgressAheadOfEvents
	// FutureWatchTooEarly: 20221.
	FutureWatchTooEarly
	// WatchBackInTime: 15271.
	WatchBackInTime
	// EventTwice: 17247.
	EventTwice
	// EventsLost: 17529.
	EventsLost
	// DeleteLost: 18089 and 19179.
	DeleteLost
	// StaleRead: 20418.
	StaleRead
	// RevisionTwice: 17780, a revision that goes back.
	RevisionTwice
	plants
)

func (p Plant) String() string {
	return [...]string{"none", "acknowledged before the sync (14370)", "applied index without effects (13766)",
		"progress ahead of events (15220)", "future watch too early (20221)", "watch back in time (15271)",
		"event twice (17247)", "events lost (17529)", "delete event lost (18089, 19179)", "stale read (20418)",
		"revision twice (17780)"}[p]
}

// dropEffects takes the versions and events out of a batch that carries an
// applied state, and leaves the rest.
func dropEffects(b *pebble.Batch) error {
	type row struct {
		kind       pebble.InternalKeyKind
		key, value []byte
	}
	var kept []row
	dropped := false
	r := b.Reader()
	for {
		kind, key, value, ok, err := r.Next()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if key[0] == keys.VersionPrefix || key[0] == keys.EventPrefix {
			dropped = true
			continue
		}
		kept = append(kept, row{kind, append([]byte(nil), key...), append([]byte(nil), value...)})
	}
	if !dropped {
		return nil
	}
	b.Reset()
	for _, r := range kept {
		var err error
		switch r.kind {
		case pebble.InternalKeyKindSet:
			err = b.Set(r.key, r.value, nil)
		case pebble.InternalKeyKindDelete:
			err = b.Delete(r.key, nil)
		default:
			err = fmt.Errorf("a batch with effects has a row of kind %v", r.kind)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// beforeCommit plants what goes wrong at the engine.
func (w *world) beforeCommit(b *pebble.Batch) error {
	if w.opt.Plant == AppliedIndexWithoutEffects && w.rng.IntN(40) == 0 {
		return dropEffects(b)
	}
	return nil
}

// corruptAnswer plants what goes wrong in answers.
func (c *simClient) corruptAnswer(answer proto.Message) proto.Message {
	w := c.w
	switch w.opt.Plant {
	case StaleRead:
		// An old leader answers from its state.
		if r, ok := answer.(*pb.RangeResponse); ok && c.op.Range.Revision == 0 && !c.op.Range.Serializable {
			for _, old := range c.stale {
				if proto.Equal(old.request, c.op.Range) {
					return proto.CloneOf(old.answer)
				}
			}
			c.stale = append(c.stale, staleRead{request: c.op.Range, answer: r})
		}
	case RevisionTwice:
		if r, ok := answer.(*pb.PutResponse); ok && w.rng.IntN(20) == 0 && r.Header.Revision > 2 {
			r.Header.Revision--
		}
	}
	return answer
}

// staleRead is a read and what it was answered.
type staleRead struct {
	request *pb.RangeRequest
	answer  *pb.RangeResponse
}

// corruptWatch plants what goes wrong on a watch: it returns what the client
// gets instead.
func (wt *simWatch) corruptWatch(resp *pb.WatchResponse) []*pb.WatchResponse {
	w := wt.c.w
	if wt.truth || resp.Created || resp.Canceled {
		return []*pb.WatchResponse{resp}
	}
	same := []*pb.WatchResponse{resp}
	switch w.opt.Plant {
	case ProgressAheadOfEvents:
		if len(resp.Events) > 0 {
			return []*pb.WatchResponse{{Header: resp.Header}, resp}
		}
	case FutureWatchTooEarly:
		if len(resp.Events) > 0 && wt.future {
			wt.future = false
			early := proto.CloneOf(resp)
			for _, e := range early.Events {
				e.Kv.ModRevision = wt.From - 1
			}
			return []*pb.WatchResponse{early, resp}
		}
	case WatchBackInTime:
		if len(resp.Events) > 0 {
			old := wt.before
			wt.before = resp
			if old != nil && w.rng.IntN(3) == 0 {
				return []*pb.WatchResponse{resp, old}
			}
		}
	case EventTwice:
		if len(resp.Events) > 0 && w.rng.IntN(10) == 0 {
			return []*pb.WatchResponse{resp, resp}
		}
	case EventsLost:
		if len(resp.Events) > 0 && w.rng.IntN(10) == 0 {
			return nil
		}
	case DeleteLost:
		kept := proto.CloneOf(resp)
		kept.Events = nil
		for _, e := range resp.Events {
			if e.Type != mvccpb.Event_DELETE {
				kept.Events = append(kept.Events, e)
			}
		}
		if len(resp.Events) > 0 && len(kept.Events) == 0 {
			return nil
		}
		return []*pb.WatchResponse{kept}
	}
	return same
}

package host

import (
	"time"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/range/replica"
)

// Write posts a write to the range's leader.
func (h *Host) Write(rangeID, epoch uint64, req *mvcc.Request, done func(*mvcc.Result, rangepb.WriteAnswer)) {
	m := h.cfg.Measures
	var began time.Time
	if m != nil {
		began = time.Now()
	}
	h.Store.Post(rangeID, &replica.Write{Epoch: epoch, Req: req, Done: func(res *mvcc.Result, a rangepb.WriteAnswer) {
		if m != nil {
			m.Wrote(rangeID, req, time.Since(began), a.Err)
		}
		if a.Err != nil && !a.NoEffect {
			a.Err = ErrorOf(rangeID, a.Err)
		}
		done(res, a)
	}})
}

// Latch posts a latch to the range's leader.
func (h *Host) Latch(rangeID, epoch uint64, owner *placementpb.TxnID, spans []mvcc.Access, done func(rangepb.LatchAnswer)) {
	h.Store.Post(rangeID, &replica.Latch{Owner: owner, Epoch: epoch, Spans: spans, Done: func(a rangepb.LatchAnswer) {
		if a.Err != nil {
			done(rangepb.LatchAnswer{Err: ErrorOf(rangeID, a.Err)})
			return
		}
		a.Resolved, _ = h.Readers.Resolved(rangeID)
		done(a)
	}})
}

// Unlatch gives a latch back.
func (h *Host) Unlatch(rangeID uint64, owner *placementpb.TxnID) {
	h.Store.Post(rangeID, &replica.Unlatch{Owner: owner})
}

// Await waits for the local replica.
func (h *Host) Await(rangeID, epoch uint64, rev int64, done func(error)) {
	h.Readers.Await(rangeID, epoch, rev, func(err error) {
		if err != nil {
			err = ErrorOf(rangeID, err)
		}
		done(err)
	})
}

// PrepareSplit cuts the counts at the key.
func (h *Host) PrepareSplit(key []byte) {
	if err := h.cfg.MVCC.PrepareBoundary(key); err != nil {
		// What is damaged is found again, and told, by who needs it.
		h.log.Warn("split not prepared", zap.Error(err))
	}
}

// Nudge has the range look after itself.
func (h *Host) Nudge(rangeID uint64) { h.Store.Post(rangeID, replica.Nudge{}) }

// Wake has the range elect and register a leader.
func (h *Host) Wake(rangeID uint64) { h.Store.Post(rangeID, replica.Wake{}) }

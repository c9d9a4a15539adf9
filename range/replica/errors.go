package replica

import (
	"errors"

	"github.com/hawser-kv/hawser/proto/rangepb"
)

// Errors of requests. All but ErrUnknownFate and ErrFailed prove that nothing of
// the request was applied and never will be: NotApplied tells them apart.
var (
	// ErrDropped: the request was given up before it was proposed (the
	// registration with the sequencer ended, or it waited too long). Ask again.
	ErrDropped = errors.New("replica: request dropped, nothing was applied")
	// ErrTooManyRequests: the queue of the range is full (etcd/X9).
	ErrTooManyRequests = errors.New("replica: too many requests")
	// ErrNoSpace: the disk is nearly full, or the NOSPACE alarm is on (etcd/X12).
	ErrNoSpace = errors.New("replica: no space")
	// ErrLeaseNotFound: a put names a lease that does not exist (R8).
	ErrLeaseNotFound = errors.New("replica: requested lease not found")
	// ErrAborted: the owner of the latch gave it back before it was given.
	ErrAborted = errors.New("replica: the owner of the latch gave it up")
	// ErrTooWide: the write reads more than may be evaluated on the worker. Its
	// sender latches the range, evaluates it and commits it through the sequencer, as a
	// transaction over ranges (R7).
	ErrTooWide = errors.New("replica: write is too wide to be evaluated here")
	// ErrUnknownFate: the write was proposed and the leader lost its place; it
	// may be applied or not. Never retried below the client.
	ErrUnknownFate = errors.New("replica: leader lost, the fate of the write is unknown")
	// ErrFailed: this replica found damage and stopped; see the log. What was
	// proposed has an unknown fate. Reads answer it too.
	ErrFailed = errors.New("replica: stopped after a fault")
	// ErrNotResolved: the view was asked for before the replica had resolved
	// what the read needs. Await first.
	ErrNotResolved = errors.New("replica: revision not resolved yet")
	// ErrAwaitExpired: the replica did not resolve the revision in time.
	ErrAwaitExpired = errors.New("replica: waited too long for the revision")
)

// staleEpoch is the hint for who names another epoch, or keys outside the span.
func staleEpoch(rangeID uint64, desc *rangepb.RangeDescriptor) error {
	e := &rangepb.Error{Kind: rangepb.Stale, RangeID: rangeID}
	if desc != nil {
		e.Descriptors = []*rangepb.RangeDescriptor{desc}
	}
	return e
}

// NotApplied reports whether err proves that nothing of the request was
// applied and never will be: only then may it be asked again.
func NotApplied(err error) bool {
	return err != nil && !errors.Is(err, ErrUnknownFate) && !errors.Is(err, ErrFailed)
}

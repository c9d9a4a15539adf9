package host

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/range/replica"
	"github.com/hawser-kv/hawser/range/store"
)

// Who asks learns from the kind alone whether something was applied and whether another
// attempt may help; the cause stays in the chain.
func TestErrorsHaveTheKindOfTheirCause(t *testing.T) {
	shortage := fmt.Errorf("open: %w", syscall.EMFILE)
	for _, tc := range []struct {
		err  error
		want rangepb.ErrorKind
	}{
		{shortage, rangepb.Shortage},
		{fmt.Errorf("%w: %w", replica.ErrUnknownFate, shortage), rangepb.Unknown},
		{syscall.ENOSPC, rangepb.NoSpace},
		{store.ErrNoSpace, rangepb.NoSpace},
		{replica.ErrNoSpace, rangepb.NoSpace},
		{replica.ErrFailed, rangepb.Corrupt},
		{store.ErrNotServed, rangepb.Corrupt},
		{store.ErrStopped, rangepb.Stopped},
		{replica.ErrUnknownFate, rangepb.Unknown},
		{replica.ErrTooWide, rangepb.TooWide},
		{replica.ErrTooManyRequests, rangepb.Busy},
		{replica.ErrNotResolved, rangepb.Unresolved},
		{replica.ErrAwaitExpired, rangepb.Unresolved},
		{mvcc.ErrPending, rangepb.Unresolved},
		{replica.ErrNoReplica, rangepb.Stale},
		{replica.ErrDropped, rangepb.Dropped},
		{errors.New("of another kind"), rangepb.Dropped},
	} {
		got := ErrorOf(7, fmt.Errorf("in a chain: %w", tc.err))
		var re *rangepb.Error
		if !errors.As(got, &re) || re.Kind != tc.want || re.RangeID != 7 || !errors.Is(got, tc.err) {
			t.Errorf("%v became %v, want kind %v", tc.err, got, tc.want)
		}
	}
	named := &rangepb.Error{Kind: rangepb.NotLeader, RangeID: 3, Leader: 2}
	if got := ErrorOf(7, fmt.Errorf("in a chain: %w", named)); got != error(named) {
		t.Errorf("the range's own error became %v", got)
	}
	if got := ErrorOf(7, replica.ErrLeaseNotFound); !errors.Is(got, mvcc.ErrLeaseNotFound) {
		t.Errorf("an unknown lease became %v", got)
	}
}

// An error of reading names the first range that was read, except where it is no
// range's.
func TestErrorsOfReadingThatAreNoRanges(t *testing.T) {
	pieces := []rangepb.Piece{{RangeID: 4}, {RangeID: 5}}
	for _, err := range []error{mvcc.ErrCompacted, context.Canceled, context.DeadlineExceeded} {
		if got := viewError(pieces, err); got != err {
			t.Errorf("%v became %v", err, got)
		}
	}
	var re *rangepb.Error
	if got := viewError(pieces, replica.ErrFailed); !errors.As(got, &re) || re.RangeID != 4 {
		t.Errorf("a failed replica became %v", got)
	}
}

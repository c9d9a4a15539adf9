package rangepb

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestEveryKindHasAName(t *testing.T) {
	seen := make(map[string]ErrorKind)
	for k := Stale; k <= Shortage; k++ {
		name := k.String()
		if name == "" || strings.HasPrefix(name, "kind") {
			t.Errorf("kind %d has no name", int(k))
		}
		if other, ok := seen[name]; ok {
			t.Errorf("kinds %d and %d are both %q", int(other), int(k), name)
		}
		seen[name] = k
	}
	for _, k := range []ErrorKind{-1, 0, Shortage + 1} {
		if got, want := k.String(), fmt.Sprintf("kind %d", int(k)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestErrorShowsItsCause(t *testing.T) {
	cause := errors.New("the cause")
	err := fmt.Errorf("read: %w", &Error{Kind: Dropped, RangeID: 7, Err: cause})
	if got, want := err.Error(), "read: range 7: dropped: the cause"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	var e *Error
	if !errors.As(err, &e) || e.RangeID != 7 || !errors.Is(err, cause) {
		t.Errorf("%v is not found again", err)
	}
}

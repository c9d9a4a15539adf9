package mvcc

import (
	"errors"
	"fmt"
	"testing"
)

// pick sees every row, in order; only what it wants is read, and nothing that it
// stops at.
func TestPickEvents(t *testing.T) {
	h := newHistory(t)
	h.put("a", "v")
	h.put("b", "v")
	h.txn(then(opDelete("a", ""), opPut("c")))
	h.put("b", "w")
	h.put("a", "w")
	var rows, got []string
	err := h.s.PickEvents(2, h.rev, func(row EventRow) (want, more bool) {
		rows = append(rows, fmt.Sprintf("%d:%s delete=%t", row.Revision, row.Key, row.Delete))
		return row.Delete || string(row.Key) == "b", row.Revision < h.rev
	}, func(e Event) error {
		got = append(got, fmt.Sprintf("%d:%s %s", e.Revision, e.Kv.Key, e.Kv.Value))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if s := fmt.Sprint(rows); s != "[3:b delete=false 4:a delete=true 4:c delete=false 5:b delete=false 6:a delete=false]" {
		t.Errorf("rows %s", s)
	}
	if s := fmt.Sprint(got); s != "[3:b v 4:a  5:b w]" {
		t.Errorf("events %s", s)
	}
	if err := h.s.PickEvents(2, h.rev, func(EventRow) (want, more bool) { return true, true }, func(e Event) error {
		return errCorruptRow
	}); !errors.Is(err, errCorruptRow) {
		t.Errorf("the error of fn came back as %v", err)
	}
}

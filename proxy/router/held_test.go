package router

import (
	"errors"
	"strings"
	"testing"
)

// Ranges that stand still hold what they were sent after the clients have left:
// that is bounded, for clients that come again and again would fill the memory.
func TestWritesThatRangesHoldAreBounded(t *testing.T) {
	large := strings.Repeat("x", 10_000)
	for _, c := range []struct {
		name  string
		start func(w *world) *op
	}{
		{"in one range", func(w *world) *op { return w.start(put("a", large)) }},
		{"over ranges", func(w *world) *op {
			req := putBoth("a", "z")
			for _, o := range req.Txn.Success {
				o.GetRequestPut().Value = []byte(large)
			}
			return w.start(req)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 1, "m")
			w.sendCut()
			w.router.cfg.MaxHeldBytes = 30_000
			taken := 0
			for range 10 {
				o := c.start(w)
				if !o.done {
					taken++
					o.cancel()
					continue
				}
				if !errors.Is(o.err, ErrTooManyRequests) {
					t.Fatalf("refused with %v", o.err)
				}
			}
			if taken == 0 || taken > 3 {
				t.Errorf("%d writes of 10,000 bytes are held, want 1 to 3", taken)
			}
			for w.step() {
				continue
			}
			if n := w.router.held.Load(); n != 0 {
				t.Errorf("%d bytes are held of writes that have ended", n)
			}
			w.must(put("a", "1"))
			w.must(putBoth("a", "z"))
			if n := w.router.held.Load(); n != 0 {
				t.Errorf("%d bytes are held of writes that have ended", n)
			}
		})
	}
}

package watch

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// A client that asks and asks and reads nothing fills its stream's queue and no
// more; its requests go on when it reads, and end with the call.
func TestRequestsWaitForAClientThatDoesNotRead(t *testing.T) {
	const requests = 10_000
	for _, test := range []struct {
		name string
		ask  func(*Client)
	}{
		{"progress", func(c *Client) { c.RequestProgress(1) }},
		{"create and cancel", func(c *Client) {
			c.Create(CreateRequest{Start: []byte("k"), WatchID: 7, Current: 1})
			c.Cancel(7, 1)
		}},
		{"refused", func(c *Client) { c.Create(CreateRequest{Start: []byte("k"), StartRevision: -1, Current: 1}) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := NewFrontier()
				f.Cut(&placementpb.Cut{Revision: 1, First: true, Descriptors: []*rangepb.RangeDescriptor{{RangeId: 1}}})
				limits := Limits{StreamBytes: 10_000}
				s := NewService(f, Config{Limits: limits})
				s.Step()
				c := s.Open()
				c.Create(CreateRequest{Start: []byte("a"), Current: 1})
				asked, done := 0, make(chan struct{})
				go func() {
					defer close(done)
					for ; asked < requests; asked++ {
						test.ask(c)
					}
				}()
				synctest.Wait()
				if most := limits.StreamBytes/responseOverhead + 2; len(c.stream.out) > most {
					t.Fatalf("%d responses wait for a client that does not read, want at most %d", len(c.stream.out), most)
				}
				before := asked
				for range 2 { // take, and say that it was sent
					if _, err := c.Next(t.Context()); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
				}
				if asked == before {
					t.Error("no request goes on after the client has read")
				}
				c.Close()
				<-done
			})
		})
	}
}

// slowHistory has nothing, and takes its time to say so.
type slowHistory struct{ takes time.Duration }

func (h slowHistory) PickEvents(int64, int64, func(mvcc.EventRow) (want, more bool), func(mvcc.Event) error) error {
	<-time.After(h.takes)
	return nil
}

// Watchers that come one after the other while history is read gather for the
// next read, also when a reader would be free: it rests for as long as it read.
func TestReadersRestSoThatWatchersGather(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const watchers, takes = 1000, 10 * time.Millisecond
		f := NewFrontier()
		f.Cut(&placementpb.Cut{Revision: 5, First: true, Descriptors: []*rangepb.RangeDescriptor{{RangeId: 1}}})
		s := NewService(f, Config{History: slowHistory{takes}, Readers: 1})
		s.Start()
		defer s.Stop()
		s.Step()
		c := s.Open()
		defer c.Close()
		for range watchers {
			<-time.After(time.Millisecond)
			c.Create(CreateRequest{Start: []byte("k"), StartRevision: 2, Current: 5})
		}
		<-time.After(10 * takes)
		synctest.Wait()
		st := s.Stats()
		if st.Watchers != watchers || st.Behind != 0 {
			t.Errorf("%d watchers, %d behind, want %d and none", st.Watchers, st.Behind, watchers)
		}
		if most := int64(watchers/(2*takes.Milliseconds()) + 2); st.Reads > most {
			t.Errorf("%d reads for watchers that came in %d ms, want at most %d", st.Reads, watchers, most)
		}
	})
}

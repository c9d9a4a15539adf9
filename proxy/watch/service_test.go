package watch

import (
	"testing"
	"testing/synctest"

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

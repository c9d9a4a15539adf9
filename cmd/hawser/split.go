package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hawser-kv/hawser/proto/adminpb"
)

const (
	// splitsAtOnce is how many splits are asked for at a time. They share syncs of
	// the server's disk; more would gain little and delay its clients.
	splitsAtOnce = 8
	// oneByOne is up to how many splits are asked for one by one: then the ids of the
	// new ranges follow from the keys.
	oneByOne = 64
	// progressEvery is how often the progress of many splits is told.
	progressEvery = time.Second
)

// byHalves orders splits so that each range is cut near the middle of what is
// still to be cut in it, whatever the order of the keys: a range at the end of the
// keys, which clients may use, is cut a few times and not once for each key.
// Neighbours in the order cut different ranges. A key that comes again is last.
func byHalves(requests []*adminpb.SplitRangeRequest) []*adminpb.SplitRangeRequest {
	sorted := slices.Clone(requests)
	slices.SortStableFunc(sorted, func(a, b *adminpb.SplitRangeRequest) int { return bytes.Compare(a.GetKey(), b.GetKey()) })
	var again []*adminpb.SplitRangeRequest
	distinct := sorted[:0:0]
	for i, r := range sorted {
		if i > 0 && bytes.Equal(r.GetKey(), sorted[i-1].GetKey()) {
			again = append(again, r)
			continue
		}
		distinct = append(distinct, r)
	}
	ordered := make([]*adminpb.SplitRangeRequest, 0, len(requests))
	for level := [][]*adminpb.SplitRangeRequest{distinct}; len(level) > 0; {
		var next [][]*adminpb.SplitRangeRequest
		for _, part := range level {
			if len(part) == 0 {
				continue
			}
			middle := len(part) / 2
			ordered = append(ordered, part[middle])
			next = append(next, part[:middle], part[middle+1:])
		}
		level = next
	}
	return append(ordered, again...)
}

// splits asks for many splits.
type splits struct {
	srv          *admin
	skipExisting bool
	mu           struct {
		sync.Mutex
		next int
		done splitsJSON
		err  error // the first failure; nothing is asked for after it
	}
}

// run asks for the splits and returns what was done, in the order of keys, and the
// first failure.
func (s *splits) run(ctx context.Context, requests []*adminpb.SplitRangeRequest) (splitsJSON, error) {
	s.mu.done = splitsJSON{Splits: []splitJSON{}, Existing: [][]byte{}}
	workers := splitsAtOnce
	if len(requests) <= oneByOne {
		workers = 1
	}
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for r := s.take(requests); r != nil; r = s.take(requests) {
				resp, err := call(ctx, s.srv, s.srv.SplitRange, r)
				s.put(r, resp, err)
			}
		})
	}
	running.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortFunc(s.mu.done.Splits, func(a, b splitJSON) int {
		return cmp.Or(bytes.Compare(a.Right.Start, b.Right.Start), cmp.Compare(a.Right.ID, b.Right.ID))
	})
	slices.SortFunc(s.mu.done.Existing, bytes.Compare)
	return s.mu.done, s.mu.err
}

// take returns the next request, nil if there is none.
func (s *splits) take(requests []*adminpb.SplitRangeRequest) *adminpb.SplitRangeRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.err != nil || s.mu.next == len(requests) {
		return nil
	}
	s.mu.next++
	return requests[s.mu.next-1]
}

func (s *splits) put(r *adminpb.SplitRangeRequest, resp *adminpb.SplitRangeResponse, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var exit *exitError
	switch {
	case errors.As(err, &exit) && exit.code == exitBoundary && s.skipExisting:
		s.mu.done.Existing = append(s.mu.done.Existing, r.GetKey())
	case err != nil:
		if s.mu.err == nil {
			s.mu.err = describeSplitFailure(err, r)
		}
	default:
		s.mu.done.Splits = append(s.mu.done.Splits, splitJSON{Left: rangeOf(resp.GetLeft()), Right: rangeOf(resp.GetRight())})
	}
}

// made is the number of keys that are dealt with.
func (s *splits) made() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.done.Splits) + len(s.mu.done.Existing)
}

// tellProgress says on standard error how far the splits are, at each tick until
// the function that it returns is called.
func (a *app) tellProgress(s *splits, total int, tick <-chan time.Time) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-tick:
				fmt.Fprintf(a.stderr, "%d of %d splits are done\n", s.made(), total)
			case <-end:
				return
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}

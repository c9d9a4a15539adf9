package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Go's garbage collector lets the heap grow by as much as is live. A server that
// holds little then collects many times a second under load; one that holds much
// should not take twice that. So the heap may grow by gcSlackBytes if less than
// that is live, and as usual beyond.
const (
	gcSlackBytes = 32 << 20
	// minGCPercent is Go's default, maxGCPercent what an empty server gets.
	minGCPercent = 100
	maxGCPercent = 400
)

// gcPercent returns the percentage of what is live by which the heap may grow.
func gcPercent(liveBytes uint64) int {
	if liveBytes == 0 {
		return maxGCPercent
	}
	return int(min(max(gcSlackBytes*100/liveBytes, minGCPercent), maxGCPercent))
}

// tendMemory sets the garbage collector until ctx ends, unless the environment
// does (GOGC, GOMEMLIMIT).
func tendMemory(ctx context.Context, environ []string) {
	if lookupEnv(environ, "GOGC") != "" || lookupEnv(environ, "GOMEMLIMIT") != "" {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	last := minGCPercent
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		metrics.Read(live)
		// Each change stops the world for a moment: small ones do not matter.
		if p := gcPercent(live[0].Value.Uint64()); p > last*11/10 || p < last*9/10 {
			debug.SetGCPercent(p)
			last = p
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"
)

// result is one work on one target in one round.
type result struct {
	Work, Target string
	Round        int
	// Operations were done in Seconds.
	Operations float64
	Seconds    float64
	// P50Millis, P99Millis and MaxMillis are latencies of requests.
	P50Millis, P99Millis, MaxMillis float64
	// ServerMicros and ClientMicros are CPU time for each operation.
	ServerMicros, ClientMicros float64
	// PeakMiB is the most memory that was resident during the work.
	PeakMiB float64
	// WrittenBytes is what the server wrote to the disk for each operation.
	WrittenBytes float64
	// Extra are figures of one work alone.
	Extra map[string]float64 `json:",omitempty"`
}

func (r *result) perSecond() float64 { return r.Operations / r.Seconds }

// scale makes each operation count as n.
func (r *result) scale(n float64) {
	r.Operations *= n
	r.ServerMicros /= n
	r.ClientMicros /= n
	r.WrittenBytes /= n
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// measure runs a load and takes what the server and this process used meanwhile.
func (b *bench) measure(s *server, load func() (*measured, error)) (*result, error) {
	if err := resetPeak(s.pid()); err != nil {
		return nil, err
	}
	before, err := readUsage(s.pid())
	if err != nil {
		return nil, err
	}
	own := ownCPU()
	profiled := b.profile(s)
	m, err := load()
	if err != nil {
		return nil, err
	}
	own = ownCPU() - own
	after, err := readUsage(s.pid())
	if err != nil {
		return nil, err
	}
	if err := profiled(); err != nil {
		return nil, err
	}
	n := float64(len(m.latencies))
	return &result{
		Work: b.current.work, Target: b.current.target, Round: b.current.round,
		Operations: n, Seconds: m.elapsed.Seconds(),
		P50Millis: millis(m.percentile(0.5)), P99Millis: millis(m.percentile(0.99)), MaxMillis: millis(m.percentile(1)),
		ServerMicros: (after.cpu - before.cpu).Seconds() * 1e6 / n, ClientMicros: own.Seconds() * 1e6 / n,
		PeakMiB: float64(after.peakBytes) / (1 << 20), WrittenBytes: float64(after.writtenBytes-before.writtenBytes) / n,
	}, nil
}

// profile begins a CPU profile of the server, if profiles are wanted, and returns what waits for its end.
func (b *bench) profile(s *server) (wait func() error) {
	if b.Profiles == "" {
		return func() error { return nil }
	}
	const seconds = 3
	done := make(chan error, 1)
	name := fmt.Sprintf("%s-%s-%d.pb.gz", b.current.work, b.current.target, b.current.round)
	go func() {
		done <- func() error {
			ctx, cancel := context.WithTimeout(context.Background(), 10*seconds*time.Second)
			defer cancel()
			url := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", s.address, seconds)
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				return err
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				return err
			}
			defer response.Body.Close()
			if response.StatusCode != http.StatusOK {
				return fmt.Errorf("profile: %s", response.Status)
			}
			if err := os.MkdirAll(b.Profiles, 0o700); err != nil {
				return err
			}
			f, err := os.Create(filepath.Join(b.Profiles, name))
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = io.Copy(f, response.Body)
			return err
		}()
	}()
	return func() error { return <-done }
}

// add keeps a result and shows it at once: a run takes long.
func (b *bench) add(r *result) {
	b.results = append(b.results, r)
	fmt.Printf("round %d  %-8s %-12s %10.0f/s  p50 %8.2f ms  p99 %8.2f ms  max %8.2f ms  server %7.1f us  client %6.1f us  peak %6.0f MiB  written %7.0f B/op",
		r.Round, r.Work, r.Target, r.perSecond(), r.P50Millis, r.P99Millis, r.MaxMillis, r.ServerMicros, r.ClientMicros, r.PeakMiB, r.WrittenBytes)
	for _, name := range sortedKeys(r.Extra) {
		fmt.Printf("  %s %.4g", name, r.Extra[name])
	}
	fmt.Println()
}

func sortedKeys(m map[string]float64) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// figures are the columns of the table; for each the value of a result.
var figures = []struct {
	name  string
	value func(*result) float64
}{
	{"per second", (*result).perSecond},
	{"p50 ms", func(r *result) float64 { return r.P50Millis }},
	{"p99 ms", func(r *result) float64 { return r.P99Millis }},
	{"server us/op", func(r *result) float64 { return r.ServerMicros }},
	{"client us/op", func(r *result) float64 { return r.ClientMicros }},
	{"peak MiB", func(r *result) float64 { return r.PeakMiB }},
	{"written B/op", func(r *result) float64 { return r.WrittenBytes }},
}

// of returns the figures of a work on a target over all rounds, in the order of the rounds.
func (b *bench) of(work, target string) []*result {
	var rs []*result
	for _, r := range b.results {
		if r.Work == work && r.Target == target {
			rs = append(rs, r)
		}
	}
	return rs
}

// report prints medians over the rounds, and the medians of the ratios to the first target within each round: other
// work on the machine changes from round to round and spoils ratios of medians.
func (b *bench) report(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\nwork\tserver\t")
	for _, f := range figures {
		fmt.Fprintf(t, "%s\t", f.name)
	}
	fmt.Fprintln(t)
	for _, work := range b.Works {
		base := b.of(work, b.targets[0].name)
		for i, target := range b.targets {
			rs := b.of(work, target.name)
			if len(rs) == 0 {
				continue
			}
			fmt.Fprintf(t, "%s\t%s\t", work, target.name)
			for _, f := range figures {
				fmt.Fprintf(t, "%.4g", median(rs, f.value))
				if n := min(len(rs), len(base)); i > 0 && n > 0 {
					ratios := make([]float64, n)
					for j := range n {
						ratios[j] = f.value(rs[j]) / f.value(base[j])
					}
					fmt.Fprintf(t, " (%.2fx)", medianOf(ratios))
				}
				fmt.Fprint(t, "\t")
			}
			fmt.Fprintln(t)
		}
	}
	t.Flush()
	b.reportExtras(w)
}

// reportExtras prints the figures that one work alone has.
func (b *bench) reportExtras(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t)
	// Some works have several parts, with names of their own.
	var measured []string
	for _, r := range b.results {
		if !slices.Contains(measured, r.Work) {
			measured = append(measured, r.Work)
		}
	}
	for _, work := range measured {
		for _, target := range b.targets {
			rs := b.of(work, target.name)
			if len(rs) == 0 {
				continue
			}
			for _, name := range sortedKeys(rs[0].Extra) {
				fmt.Fprintf(t, "%s\t%s\t%s\t%.4g\n", work, name, target.name, median(rs, func(r *result) float64 { return r.Extra[name] }))
			}
		}
	}
	t.Flush()
}

func median(rs []*result, value func(*result) float64) float64 {
	vs := make([]float64, len(rs))
	for i, r := range rs {
		vs[i] = value(r)
	}
	return medianOf(vs)
}

// medianOf returns the middle value, of an even number the mean of the middle two. It orders vs.
func medianOf(vs []float64) float64 {
	slices.Sort(vs)
	n := len(vs)
	if n == 0 {
		return 0
	}
	return (vs[(n-1)/2] + vs[n/2]) / 2
}

package config

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// Validate reports every problem of a configuration whose defaults are filled
// in, joined into one error with one line each.
func (c *Config) Validate() error {
	var problems []error
	report := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }

	// Every field must be what its own option would accept.
	scratch := Config{AutoCompactionMode: c.AutoCompactionMode}
	for _, o := range options {
		text := o.get(c)
		if text == "" && slices.Contains(mayBeUnset, o.name) {
			continue
		}
		if err := o.set(&scratch, text); err != nil {
			report("--%s=%s: %w", o.name, text, err)
		}
	}

	if len(c.ListenClientURLs) == 0 {
		report("--listen-client-urls: must not be empty")
	}
	if len(c.AdvertiseClientURLs) == 0 {
		if u := firstWildcard(c.ListenClientURLs); u != nil {
			report("--advertise-client-urls must be set when --listen-client-urls has a wildcard address (%s): clients cannot connect to that", u)
		}
	}
	if c.ElectionTimeout < 5*c.HeartbeatInterval {
		report("--election-timeout=%d must be at least five times --heartbeat-interval=%d",
			c.ElectionTimeout.Milliseconds(), c.HeartbeatInterval.Milliseconds())
	}
	if c.EngineCacheBytes < 2*c.EngineMemTableBytes {
		report("--engine-cache-bytes=%d must be at least twice --engine-memtable-bytes=%d: memtables are counted in it",
			c.EngineCacheBytes, c.EngineMemTableBytes)
	}
	if err := c.checkInitialCluster(); err != nil {
		report("--initial-cluster=%s: %w", c.InitialCluster, err)
	}
	if err := c.checkListenTwice(); err != nil {
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// mayBeUnset are the options without a value of their own by default.
var mayBeUnset = []string{"advertise-client-urls", "listen-client-http-urls", "listen-metrics-urls"}

// checkInitialCluster accepts the one cluster that a single node can be: itself.
func (c *Config) checkInitialCluster() error {
	members := make(map[string][]string)
	for _, entry := range strings.Split(c.InitialCluster, ",") {
		name, peer, ok := strings.Cut(strings.TrimSpace(entry), "=")
		if !ok || name == "" {
			return fmt.Errorf("%q is not of the form name=url", entry)
		}
		members[name] = append(members[name], peer)
	}
	if len(members) > 1 {
		return errors.New(noCluster)
	}
	peers, ok := members[c.Name]
	if !ok {
		return fmt.Errorf("does not contain this node, --name=%s", c.Name)
	}
	urls, err := parseURLs(strings.Join(peers, ","), peerSchemes)
	if err != nil {
		return err
	}
	if !sameURLs(urls, c.InitialAdvertisePeerURLs) {
		return fmt.Errorf("is not --initial-advertise-peer-urls=%s", formatURLs(c.InitialAdvertisePeerURLs))
	}
	return nil
}

func sameURLs(a, b []url.URL) bool {
	sorted := func(urls []url.URL) []string {
		texts := strings.Split(formatURLs(urls), ",")
		slices.Sort(texts)
		return texts
	}
	return slices.Equal(sorted(a), sorted(b))
}

// formatCluster writes the initial cluster of one member.
func formatCluster(name string, peers []url.URL) string {
	entries := make([]string, len(peers))
	for i, u := range peers {
		entries[i] = name + "=" + u.String()
	}
	return strings.Join(entries, ",")
}

// checkListenTwice finds an address that two listeners want. Port 0 is never
// the same port twice.
func (c *Config) checkListenTwice() error {
	var problems []error
	user := make(map[string]string)
	for _, l := range []struct {
		flag string
		urls []url.URL
	}{
		{"listen-client-urls", c.ListenClientURLs},
		{"listen-client-http-urls", c.ListenClientHTTPURLs},
		{"listen-metrics-urls", c.ListenMetricsURLs},
	} {
		for _, u := range l.urls {
			network, address := ListenAddress(u)
			if network == "tcp" && u.Port() == "0" {
				continue
			}
			if other, taken := user[address]; taken {
				problems = append(problems, fmt.Errorf("--%s and --%s both want %s", other, l.flag, address))
			}
			user[address] = l.flag
		}
	}
	return errors.Join(problems...)
}

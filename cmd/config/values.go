package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An option is one flag: how its text becomes a field, and back. set checks
// the value on its own; what depends on other fields is in Validate.
type option struct {
	name  string
	usage string
	set   func(c *Config, text string) error
	get   func(c *Config) string
	// isBool: the flag alone means true.
	isBool bool
	// isDuration: an integer in a config file counts nanoseconds, as in etcd.
	isDuration bool
}

type integer interface {
	~int | ~int64 | ~uint32
}

func textOption(name, usage string, field func(*Config) *string, check func(string) error) option {
	return option{
		name: name, usage: usage,
		get: func(c *Config) string { return *field(c) },
		set: func(c *Config, text string) error {
			if err := check(text); err != nil {
				return err
			}
			*field(c) = text
			return nil
		},
	}
}

func boolOption(name, usage string, field func(*Config) *bool) option {
	return option{
		name: name, usage: usage, isBool: true,
		get: func(c *Config) string { return strconv.FormatBool(*field(c)) },
		set: func(c *Config, text string) error {
			v, err := strconv.ParseBool(text)
			if err != nil {
				return errors.New("must be true or false")
			}
			*field(c) = v
			return nil
		},
	}
}

func integerOption[T integer](name, usage string, field func(*Config) *T, lowest, highest int64) option {
	return option{
		name: name, usage: usage,
		get: func(c *Config) string { return strconv.FormatInt(int64(*field(c)), 10) },
		set: func(c *Config, text string) error {
			v, err := strconv.ParseInt(text, 10, 64)
			if err != nil || v < lowest || v > highest {
				return fmt.Errorf("must be a whole number from %d to %d", lowest, highest)
			}
			*field(c) = T(v)
			return nil
		},
	}
}

// millisecondsOption is a duration that the command line gives as a plain
// number of milliseconds, as etcd does for Raft's times.
func millisecondsOption(name, usage string, field func(*Config) *time.Duration, lowest, highest time.Duration) option {
	return option{
		name: name, usage: usage,
		get: func(c *Config) string { return strconv.FormatInt(field(c).Milliseconds(), 10) },
		set: func(c *Config, text string) error {
			v, err := strconv.ParseInt(text, 10, 64)
			if err != nil || v < lowest.Milliseconds() || v > highest.Milliseconds() {
				return fmt.Errorf("must be a whole number of milliseconds from %d to %d", lowest.Milliseconds(), highest.Milliseconds())
			}
			*field(c) = time.Duration(v) * time.Millisecond
			return nil
		},
	}
}

func durationOption(name, usage string, field func(*Config) *time.Duration, lowest, highest time.Duration) option {
	return option{
		name: name, usage: usage, isDuration: true,
		get: func(c *Config) string { return field(c).String() },
		set: func(c *Config, text string) error {
			v, err := time.ParseDuration(text)
			if err != nil || v < lowest || v > highest {
				return fmt.Errorf("must be a duration with a unit, such as 500ms or 10s, from %s to %s", lowest, highest)
			}
			*field(c) = v
			return nil
		},
	}
}

// switchableDurationOption is a duration that 0 switches off.
func switchableDurationOption(name, usage string, field func(*Config) *time.Duration, lowest, highest time.Duration) option {
	o := durationOption(name, usage, field, lowest, highest)
	get, set := o.get, o.set
	o.get = func(c *Config) string {
		if *field(c) == Disabled {
			return "0s"
		}
		return get(c)
	}
	o.set = func(c *Config, text string) error {
		if v, err := time.ParseDuration(text); err == nil && v == 0 {
			*field(c) = Disabled
			return nil
		}
		if err := set(c, text); err != nil {
			return fmt.Errorf("%w, or 0 to switch it off", err)
		}
		return nil
	}
	return o
}

func urlsOption(name, usage string, field func(*Config) *[]url.URL, check func(url.URL) error) option {
	return urlsOptionOf(name, usage, field, check, clientSchemes)
}

// peerURLsOption is urlsOption for the peer port, which a single node does not
// open: what it would be protected by makes no difference.
func peerURLsOption(name, usage string, field func(*Config) *[]url.URL, check func(url.URL) error) option {
	return urlsOptionOf(name, usage, field, check, peerSchemes)
}

func urlsOptionOf(name, usage string, field func(*Config) *[]url.URL, check func(url.URL) error, schemes []string) option {
	return option{
		name: name, usage: usage,
		get: func(c *Config) string { return formatURLs(*field(c)) },
		set: func(c *Config, text string) error {
			urls, err := parseURLs(text, schemes)
			if err != nil {
				return err
			}
			for _, u := range urls {
				if err := check(u); err != nil {
					return err
				}
			}
			*field(c) = urls
			return nil
		},
	}
}

// Schemes that URLs may have.
var (
	clientSchemes = []string{"http", "unix"}
	peerSchemes   = []string{"http", "https", "unix", "unixs"}
)

// maxSocketPath is the longest path of a Unix socket that Linux takes.
const maxSocketPath = 107

// parseURLs reads a comma-separated list. Empty means none. Duplicates count
// once; the order is kept.
func parseURLs(text string, schemes []string) ([]url.URL, error) {
	if text == "" {
		return nil, nil
	}
	var urls []url.URL
	for _, s := range strings.Split(text, ",") {
		s = strings.TrimSpace(s)
		u, err := url.Parse(s)
		if err != nil {
			return nil, err
		}
		switch {
		case !slices.Contains(peerSchemes, u.Scheme):
			return nil, fmt.Errorf("%q is not of the form http://host:port", s)
		case !slices.Contains(schemes, u.Scheme):
			return nil, fmt.Errorf("%s: scheme %q: %s; use http or unix", s, u.Scheme, noTLS)
		case isSocket(*u):
			err = checkSocketURL(s, u)
		default:
			err = checkHostURL(s, u)
		}
		if err != nil {
			return nil, err
		}
		if !slices.Contains(urls, *u) {
			urls = append(urls, *u)
		}
	}
	return urls, nil
}

func checkHostURL(s string, u *url.URL) error {
	_, port, err := net.SplitHostPort(u.Host)
	if err != nil {
		return fmt.Errorf("%s: the address is not of the form host:port", s)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("%s: the port must be a number from 0 to 65535", s)
	}
	if u.Path != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return fmt.Errorf("%s: nothing may come before the host or after the port", s)
	}
	return nil
}

func checkSocketURL(s string, u *url.URL) error {
	_, path := ListenAddress(*u)
	switch {
	case path == "" || u.Opaque != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return fmt.Errorf("%s: a socket is of the form unix:///path, or unix://name in the working directory", s)
	case strings.HasSuffix(path, "/") || len(path) > maxSocketPath:
		return fmt.Errorf("%s: the path of a socket must name a file and have at most %d bytes", s, maxSocketPath)
	}
	return nil
}

func isSocket(u url.URL) bool { return u.Scheme == "unix" || u.Scheme == "unixs" }

// ListenAddress returns what a URL of a valid configuration means to net.Listen.
// A Unix socket's path is host and path, as in etcd.
func ListenAddress(u url.URL) (network, address string) {
	if isSocket(u) {
		return "unix", u.Host + u.Path
	}
	return "tcp", u.Host
}

func mustParseURLs(text string) []url.URL {
	urls, err := parseURLs(text, clientSchemes)
	if err != nil {
		panic(fmt.Sprintf("config: built-in URL list %q: %v", text, err))
	}
	return urls
}

func formatURLs(urls []url.URL) string {
	texts := make([]string, len(urls))
	for i, u := range urls {
		texts[i] = u.String()
	}
	return strings.Join(texts, ",")
}

// canListen refuses names: what a name resolves to when the server starts is
// not what the operator can see in the configuration.
func canListen(u url.URL) error {
	if isSocket(u) {
		return nil
	}
	if host := u.Hostname(); host != "localhost" && host != "" && net.ParseIP(host) == nil {
		return fmt.Errorf("%s: listening needs an IP address or localhost, not a name", u.String())
	}
	return nil
}

func canAdvertise(u url.URL) error {
	if u.Hostname() == "" && !isSocket(u) {
		return fmt.Errorf("%s: the host is empty", u.String())
	}
	return nil
}

// firstWildcard returns the first URL that names all addresses of the machine:
// it can be listened on but not connected to from elsewhere.
func firstWildcard(urls []url.URL) *url.URL {
	for i, u := range urls {
		if isSocket(u) {
			continue
		}
		if ip := net.ParseIP(u.Hostname()); u.Hostname() == "" || ip != nil && ip.IsUnspecified() {
			return &urls[i]
		}
	}
	return nil
}

func listOption(name, usage string, field func(*Config) *[]string, check func([]string) error) option {
	return option{
		name: name, usage: usage,
		get: func(c *Config) string { return strings.Join(*field(c), ",") },
		set: func(c *Config, text string) error {
			var list []string
			for _, s := range strings.Split(text, ",") {
				if s = strings.TrimSpace(s); !slices.Contains(list, s) {
					list = append(list, s)
				}
			}
			if err := check(list); err != nil {
				return err
			}
			*field(c) = list
			return nil
		},
	}
}

func oneOf(values ...string) func(string) error {
	return func(s string) error {
		if !slices.Contains(values, s) {
			return fmt.Errorf("must be one of %s", strings.Join(values, ", "))
		}
		return nil
	}
}

package compat

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// ctlFormats are the values of --write-out.
var ctlFormats = []string{"simple", "json", "table", "fields", "protobuf"}

// ctlScript are commands whose output is the same from a real etcd and from Hawser, run in this order for each format.
// @REV@ is replaced by the revision before the script.
var ctlScript = []ctlCommand{
	{args: []string{"put", "ctl/a", "1"}},
	{args: []string{"put", "ctl/a", "2", "--prev-kv"}},
	{args: []string{"put", "ctl/b", "b value"}},
	{args: []string{"put", "ctl/empty", ""}},
	{args: []string{"get", "ctl/a"}},
	{args: []string{"get", "ctl/", "--prefix"}},
	{args: []string{"get", "", "--prefix", "--keys-only"}},
	{args: []string{"get", "", "--from-key", "--limit=2"}},
	{args: []string{"get", "ctl/", "--prefix", "--count-only"}},
	{args: []string{"get", "ctl/", "--prefix", "--order=DESCEND", "--sort-by=MODIFY"}},
	{args: []string{"get", "ctl/", "--prefix", "--consistency=s"}},
	{args: []string{"get", "ctl/a", "--rev=@REV@"}},
	{args: []string{"get", "ctl/", "--prefix", "--stream"}},
	{args: []string{"get", "ctl/missing"}},
	{args: []string{"txn"}, stdin: "value(\"ctl/a\") = \"2\"\nmod(\"ctl/b\") > \"1\"\n\nput ctl/a 3\nget ctl/ --prefix\n\nput ctl/b 4\n\n"},
	{args: []string{"txn"}, stdin: "create(\"ctl/t\") = \"0\"\nver(\"ctl/a\") > \"100\"\n\nput ctl/t 1\n\nget ctl/t\ndel ctl/b\n\n"},
	{args: []string{"txn", "-i"}, stdin: "ver(\"ctl/a\") = \"3\"\n\nput ctl/t 1\ndel ctl/none\nget ctl/a --rev=1\n\nget ctl/t\n\n"},
	{args: []string{"del", "ctl/a", "--prev-kv"}},
	{args: []string{"del", "ctl/", "--prefix", "--prev-kv"}},
	{args: []string{"put", "ctl/z", "1"}},
	{args: []string{"endpoint", "health"}},
	{args: []string{"endpoint", "status"}},
	{args: []string{"endpoint", "hashkv"}},
	{args: []string{"endpoint", "hashkv", "--rev=@REV@"}},
	{args: []string{"endpoint", "health", "--cluster"}},
	{args: []string{"endpoint", "status", "--cluster"}},
	{args: []string{"member", "list"}},
	{args: []string{"alarm", "list"}},
	{args: []string{"compaction", "@REV@"}},
	{args: []string{"endpoint", "hashkv"}},
	{args: []string{"defrag"}},
	{args: []string{"defrag", "--cluster"}},
}

// ctlScriptOnce are further commands; how they print does not depend on more than ctlScript shows, so one format is enough.
var ctlScriptOnce = []ctlCommand{
	{args: []string{"put", "ctl/c"}, stdin: "from stdin"},
	{args: []string{"put", "ctl/c", "--ignore-value"}},
	{args: []string{"put", "ctl/c", "new", "--ignore-lease"}},
	{args: []string{"put", "--", "-dash", "--value"}},
	{args: []string{"put", "ctl/none", "--ignore-value"}},
	{args: []string{"put", "ctl/a", "x", "--lease=1234abcd"}},
	{args: []string{"put", "", "x"}},
	{args: []string{"get", "ctl/a", "--hex"}},
	{args: []string{"get", "ctl/a", "ctl/c"}},
	{args: []string{"get", "ctl/b", "--from-key"}},
	{args: []string{"get", "ctl/", "--prefix", "--print-value-only"}},
	{args: []string{"get", "ctl/", "--prefix", "--sort-by=VALUE", "--limit=1"}},
	{args: []string{"get", "ctl/", "--prefix", "--order=ASCEND", "--sort-by=CREATE"}},
	{args: []string{"get", "ctl/", "--prefix", "--order=DESCEND", "--sort-by=VERSION"}},
	{args: []string{"get", "ctl/", "--prefix", "--sort-by=BAD"}},
	{args: []string{"get", "ctl/a", "--rev=1000000"}},
	{args: []string{"get", "ctl/", "--prefix", "--min-mod-rev=2", "--max-mod-rev=5"}},
	{args: []string{"get", "ctl/", "--prefix", "--min-create-rev=2", "--max-create-rev=5"}},
	{args: []string{"txn"}, stdin: "\nput ctl/a 1\nput ctl/a 2\n\n\n"},
	{args: []string{"del", "ctl/a"}},
	{args: []string{"del", "ctl/b", "ctl/c"}},
	{args: []string{"del", "ctl/b", "--range", "ctl/c"}},
	{args: []string{"del", "ctl/y", "--from-key"}},
	{args: []string{"compaction", "@REV@", "--physical"}},
	{args: []string{"compaction", "1000000"}},
	{args: []string{"get", "ctl/a", "--rev=2"}},
}

// ctlWatches are watches, each run while the same writes are made; from the revision @REV@.
var ctlWatches = []ctlCommand{
	{args: []string{"watch", "watch/", "--prefix", "--rev=@REV@"}},
	{args: []string{"watch", "watch/", "--prefix", "--rev=@REV@", "--prev-kv"}},
	{args: []string{"watch", "watch/", "watch0", "--rev=@REV@", "--progress-notify"}},
	{args: []string{"watch", "watch/begin", "--rev=@REV@", "--prefix", "--hex"}},
	{args: []string{"watch", "-i"}, stdin: "watch watch/ --prefix --rev=@REV@\n"},
	{args: []string{"watch", "watch/", "--prefix", "--rev=@REV@", "--", "sh", "-c", "echo $ETCD_WATCH_REVISION $ETCD_WATCH_EVENT_TYPE $ETCD_WATCH_KEY $ETCD_WATCH_VALUE"}},
}

// TestEtcdctlPrintsTheSame runs the real etcdctl against a real etcd and against Hawser with a few ranges.
func TestEtcdctlPrintsTheSame(t *testing.T) {
	t.Parallel()
	settings := ReadSettings(t)
	a, b := Etcd{}.Start(t), settings.Target.Start(t)
	splits := [][]byte{[]byte("ctl/b"), []byte("ctl/c"), []byte("watch/m"), []byte("x")}
	if err := b.Split(t.Context(), splits); err != nil {
		t.Fatal(err)
	}
	pair := ctlPair{newCtl(t, a), newCtl(t, b)}
	for _, format := range ctlFormats {
		t.Run(format, func(t *testing.T) {
			if format == "json" {
				revision := pair.revision(t)
				for _, command := range ctlScriptOnce {
					pair.compare(t, command.with(format, revision))
				}
			}
			revision := pair.revision(t)
			for _, command := range ctlScript {
				pair.compare(t, command.with(format, revision))
			}
			if format != "table" { // Not a format of watch.
				pair.compareWatches(t, format)
			}
		})
	}
}

func (c ctlCommand) with(format, revision string) ctlCommand {
	args := []string{"--write-out=" + format}
	for _, arg := range c.args {
		args = append(args, strings.ReplaceAll(arg, "@REV@", revision))
	}
	return ctlCommand{args, strings.ReplaceAll(c.stdin, "@REV@", revision)}
}

type ctlPair struct{ a, b *ctl }

// revision makes a revision and returns it.
func (p ctlPair) revision(t *testing.T) string {
	t.Helper()
	command := ctlCommand{args: []string{"--write-out=fields", "put", "revision", "x"}}
	p.compare(t, command)
	for line := range strings.Lines(p.a.run(t.Context(), ctlCommand{args: []string{"--write-out=fields", "get", "revision"}}).stdout) {
		if revision, ok := strings.CutPrefix(strings.TrimSpace(line), `"ModRevision" : `); ok {
			return revision
		}
	}
	t.Fatal("no revision")
	return ""
}

func (p ctlPair) compare(t *testing.T, command ctlCommand) {
	t.Helper()
	done := make(chan ctlOutput)
	go func() { done <- p.b.run(t.Context(), command) }()
	a := p.a.run(t.Context(), command)
	b := <-done
	if os.Getenv("HAWSER_COMPAT_PRINT") != "" {
		t.Logf("%s\n%s%s", command, p.a.maskOutput(command, a.stdout), p.a.maskErrors(a.stderr))
	}
	if a.exitCode != b.exitCode {
		t.Errorf("%s: exit code %d from etcd, %d from the other", command, a.exitCode, b.exitCode)
	}
	p.diff(t, command, "output", p.a.maskOutput(command, a.stdout), p.b.maskOutput(command, b.stdout))
	p.diff(t, command, "errors", p.a.maskErrors(a.stderr), p.b.maskErrors(b.stderr))
}

func (p ctlPair) diff(t *testing.T, command ctlCommand, what, a, b string) {
	t.Helper()
	if a == b {
		return
	}
	linesA, linesB := strings.Split(a, "\n"), strings.Split(b, "\n")
	var lines []string
	for i := range max(len(linesA), len(linesB)) {
		lineOf := func(lines []string) string {
			if i < len(lines) {
				return lines[i]
			}
			return "(no line)"
		}
		if lineOf(linesA) != lineOf(linesB) {
			lines = append(lines, fmt.Sprintf("  line %d\n    etcd:  %s\n    other: %s", i+1, lineOf(linesA), lineOf(linesB)))
		}
	}
	t.Errorf("%s: %s differ:\n%s", command, what, strings.Join(lines, "\n"))
}

// compareWatches runs watches on both servers and makes writes that they see, some before and some after they have caught up.
func (p ctlPair) compareWatches(t *testing.T, format string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	revision := p.revision(t)
	write := func(args ...string) { p.compare(t, ctlCommand{args: args}) }
	write("put", "watch/1", "before")
	write("put", "watch/begin", "begin")
	watches := make(map[*ctl][]*ctlWatch)
	var commands []ctlCommand
	for _, command := range ctlWatches {
		if format == "protobuf" && slices.Contains(command.args, "--") {
			continue // What the command prints is in between.
		}
		command = command.with(format, revision)
		commands = append(commands, command)
		for _, c := range []*ctl{p.a, p.b} {
			watch, err := c.watch(ctx, command)
			if err != nil {
				t.Fatal(err)
			}
			defer watch.stop()
			watches[c] = append(watches[c], watch)
		}
	}
	await := func(key string) {
		for i, command := range commands {
			for _, c := range []*ctl{p.a, p.b} {
				if err := watches[c][i].await(ctx, formsOf(key)); err != nil {
					t.Errorf("%s with %s: %v", command, c.endpoint, err)
				}
			}
		}
	}
	await("watch/begin")
	write("put", "watch/1", "after")
	write("put", "watch/z", "after")
	write("del", "watch/", "--prefix")
	// The delete shows the keys of the formats before, too: none of them is the end.
	end := "watch/begin/end/" + format
	write("put", end, "end")
	await(end)
	for i, command := range commands {
		p.diff(t, command, "output", p.a.maskOutput(command, watches[p.a][i].stop()), p.b.maskOutput(command, watches[p.b][i].stop()))
	}
}

// formsOf returns how etcdctl may print a key.
func formsOf(key string) []string {
	var hex strings.Builder
	for _, c := range []byte(key) {
		fmt.Fprintf(&hex, `\x%02x`, c)
	}
	return []string{key, base64.StdEncoding.EncodeToString([]byte(key)), hex.String()}
}

// TestMaskingKeepsWhatMatters: what is compared must not be masked away.
func TestMaskingKeepsWhatMatters(t *testing.T) {
	c := &ctl{endpoint: "127.0.0.1:2379"}
	for _, test := range []struct {
		args []string
		a, b string
	}{
		{[]string{"--write-out=json", "get", "a"},
			`{"header":{"cluster_id":1,"member_id":2,"revision":4,"raft_term":2},"kvs":[{"key":"YQ==","version":1}],"count":1}`,
			`{"header":{"cluster_id":1,"member_id":2,"revision":4,"raft_term":2},"kvs":[{"key":"YQ==","version":2}],"count":1}`},
		{[]string{"--write-out=fields", "get", "a"}, "\"Revision\" : 8\n", "\"Revision\" : 9\n"},
		{[]string{"--write-out=fields", "get", "a"}, "\"Version\" : 8\n", "\"Version\" : 9\n"},
		{[]string{"--write-out=table", "endpoint", "hashkv"}, "│ ENDPOINT │ HASH │\n│ a │ 1 │", "│ ENDPOINT │ HASH │\n│ a │ 2 │"},
		{[]string{"endpoint", "status"},
			"127.0.0.1:2379, bdae9bbc11dd390d, 3.7.3, 3.7.0, 20 kB, 16 kB, 20%, 2.1 GB, true, false, 2, 7, 7, , , false",
			"127.0.0.1:2379, bdae9bbc11dd390d, 3.7.3, 3.7.0, 20 kB, 16 kB, 20%, 2.1 GB, false, false, 2, 7, 7, , , false"},
		{[]string{"member", "list"}, "bdae9bbc11dd390d, started, default, http://127.0.0.1:1, http://127.0.0.1:2, false", "bdae9bbc11dd390d, started, , http://127.0.0.1:1, http://127.0.0.1:2, false"},
	} {
		command := ctlCommand{args: test.args}
		if a, b := c.maskOutput(command, test.a), c.maskOutput(command, test.b); a == b {
			t.Errorf("%s: masked to the same %q", command, a)
		}
	}
	local := []string{"127.0.0.1:2379, bdae9bbc11dd390d, 3.7.3, 3.7.0, 20 kB, 16 kB, 20%, 2.1 GB, true, false, 2, 7, 7, , , false",
		"127.0.0.1:2379, 1234567890abcdef, 3.7.1, 3.5.0, 1.2 MB, 3 B, 0%, 8.6 GB, true, false, 9, 700, 70, , , false"}
	status := ctlCommand{args: []string{"endpoint", "status"}}
	if a, b := c.maskOutput(status, local[0]), c.maskOutput(status, local[1]); a != b {
		t.Errorf("local values are not masked: %q, %q", a, b)
	}
}

package compat

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-kv/hawser/tests/etcdtools"
)

// defaultsFile is the list with which cmd/config tests that a server accepts
// etcd's defaults.
const defaultsFile = "../../cmd/config/testdata/etcd-defaults.txt"

var (
	// helpOnly stand in etcd's help, and etcd does not know them.
	helpOnly = []string{"discovery", "discovery-proxy"}
	// notSettings are no options of a server, or what the others are read from.
	notSettings = []string{"version", "config-file"}
	// shownOtherwise: the help shows no default, an empty one that etcd does not
	// take, or not the value.
	shownOtherwise = []string{"data-dir", "backend-batch-interval", "max-concurrent-streams", "enable-grpc-gateway", "memory-mlock",
		"bootstrap-defrag-threshold-megabytes", "compaction-sleep-interval", "downgrade-check-time", "snapshot-catchup-entries"}
	// refusedEmpty: etcd takes an empty list for one item without a name.
	refusedEmpty = []string{"discovery-endpoints", "cipher-suites"}
)

var helpLine = regexp.MustCompile(`^  --([a-z0-9-]+)(?: '?(.*?)'?)?$`)

// TestListOfEtcdsDefaultsIsEtcds compares the list with etcd's help, and starts
// etcd, and Hawser, with all of it.
func TestListOfEtcdsDefaultsIsEtcds(t *testing.T) {
	content, err := os.ReadFile(defaultsFile)
	if err != nil {
		t.Fatal(err)
	}
	listed := make(map[string]string)
	var args []string
	for line := range strings.Lines(string(content)) {
		line = strings.TrimRight(line, "\n")
		name, value, ok := strings.Cut(strings.TrimPrefix(line, "--"), "=")
		if strings.HasPrefix(line, "#") || !ok {
			continue
		}
		listed[name] = value
		if !slices.Contains(refusedEmpty, name) && !strings.HasSuffix(name, "-urls") && name != "initial-cluster" {
			args = append(args, line)
		}
	}
	help, err := exec.Command(etcdtools.Server.Path(t), "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	inHelp := 0
	for lines := bufio.NewScanner(bytes.NewReader(help)); lines.Scan(); {
		m := helpLine.FindStringSubmatch(lines.Text())
		if m == nil || slices.Contains(helpOnly, m[1]) || slices.Contains(notSettings, m[1]) {
			continue
		}
		inHelp++
		value, ok := listed[m[1]]
		if !ok {
			t.Errorf("--%s of etcd's help is not in %s", m[1], defaultsFile)
		} else if value != m[2] && !slices.Contains(shownOtherwise, m[1]) {
			t.Errorf("--%s: etcd's help says %q, %s %q", m[1], m[2], defaultsFile, value)
		}
	}
	if inHelp != len(listed) {
		t.Errorf("etcd's help has %d flags, %s %d", inHelp, defaultsFile, len(listed))
	}
	// StartEtcd gives addresses and the directory; the last value counts.
	args = slices.DeleteFunc(args, func(a string) bool { return strings.HasPrefix(a, "--data-dir=") })
	etcdtools.StartEtcd(t, args...)
	Hawser{Flags: args}.Start(t)
}

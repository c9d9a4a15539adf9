package etcdtools

import (
	"os/exec"
	"strings"
	"testing"
)

func TestEtcdStartsServesAndStops(t *testing.T) {
	server := StartEtcd(t)
	ctl := exec.Command(Etcdctl.Path(t), "--endpoints", server.Endpoint, "put", "k", "v")
	if out, err := ctl.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "OK" {
		t.Fatalf("etcdctl put: %v, %q", err, out)
	}
	server.Stop()
	select {
	case <-server.Exited():
	default:
		t.Fatal("the process lives on after Stop")
	}
}

func TestToolsArePinnedTo373(t *testing.T) {
	for _, tool := range []Tool{Server, Etcdctl, Etcdutl} {
		args := []string{"version"}
		if tool == Server {
			args = []string{"--version"}
		}
		out, err := exec.Command(tool.Path(t), args...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "3.7.3") {
			t.Errorf("%s: %v, %q; want version 3.7.3", tool.name, err, out)
		}
	}
}

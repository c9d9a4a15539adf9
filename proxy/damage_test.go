package proxy

import (
	"io"
	"net/http"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hawser-kv/hawser/proxy/router"
)

// TestDamageShowsWhereEtcdShowsIt: the CORRUPT alarm, also beside NOSPACE, in the list
// of alarms, Status, health, readiness and metrics. It cannot be disarmed.
func TestDamageShowsWhereEtcdShowsIt(t *testing.T) {
	b := newBackend(t, router.Config{})
	_, addr := startServer(t, b)
	m := pb.NewMaintenanceClient(dial(t, addr))
	get := func(path string) (int, string) {
		t.Helper()
		resp, err := http.Get("http://" + addr + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	if code, _ := get("/readyz/data_corruption"); code != http.StatusOK {
		t.Errorf("not ready without damage: %d", code)
	}
	b.damaged.Store(true)
	for path, want := range map[string]string{
		"/health":                 `{"health":"false","reason":"ALARM CORRUPT"}`,
		"/readyz":                 "[-]data_corruption failed: alarm activated: CORRUPT\n[+]serializable_read ok",
		"/readyz/data_corruption": "alarm activated: CORRUPT",
	} {
		if code, body := get(path); code != http.StatusServiceUnavailable || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	for _, path := range []string{"/health?exclude=CORRUPT", "/readyz?exclude=data_corruption", "/livez"} {
		if code, body := get(path); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if _, body := get("/metrics"); !strings.Contains(body, `etcd_debugging_server_alarms{alarm_type="CORRUPT",server_id="8e9e05c52164694d"} 1`) {
		t.Error("no metric of the alarm")
	}
	b.lowSpace.Store(true)
	alarms, err := m.Alarm(t.Context(), &pb.AlarmRequest{Action: pb.AlarmRequest_GET})
	if err != nil || len(alarms.Alarms) != 2 {
		t.Errorf("alarms %v, %v", alarms, err)
	}
	alarms, err = m.Alarm(t.Context(), &pb.AlarmRequest{Action: pb.AlarmRequest_GET, Alarm: pb.AlarmType_CORRUPT})
	if err != nil || len(alarms.Alarms) != 1 || alarms.Alarms[0].Alarm != pb.AlarmType_CORRUPT {
		t.Errorf("alarms of one kind %v, %v", alarms, err)
	}
	if _, err := m.Alarm(t.Context(), &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, Alarm: pb.AlarmType_CORRUPT, MemberID: memberID}); err == nil {
		t.Error("damage was disarmed")
	}
	st, err := m.Status(t.Context(), &pb.StatusRequest{})
	if err != nil || len(st.Errors) != 2 || !strings.Contains(st.Errors[1], "alarm:CORRUPT") {
		t.Errorf("status %v, %v", st, err)
	}
}

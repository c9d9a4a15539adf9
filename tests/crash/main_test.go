package crash

import (
	"os"
	"testing"

	"github.com/hawser-kv/hawser/tests/compat"
)

func TestMain(m *testing.M) {
	code := m.Run()
	compat.RemoveHawserBinary()
	os.Exit(code)
}

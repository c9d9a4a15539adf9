package keys_test

import (
	"testing"

	mvcckeys "github.com/hawser-kv/hawser/mvcc/keys"
	"github.com/hawser-kv/hawser/range/keys"
)

// One engine holds the rows of all: no two kinds begin with the same byte.
func TestKindsOfRowsDoNotCollide(t *testing.T) {
	seen := make(map[byte]string)
	for name, prefix := range map[string]byte{
		"node": keys.NodePrefix, "group": keys.GroupPrefix,
		"version": mvcckeys.VersionPrefix, "event": mvcckeys.EventPrefix, "count": mvcckeys.CountPrefix,
		"mvcc meta": mvcckeys.MVCCMetaPrefix, "lease": mvcckeys.LeasePrefix,
	} {
		if other, ok := seen[prefix]; ok {
			t.Errorf("rows of %s and %s both begin with %#x", name, other, prefix)
		}
		seen[prefix] = name
	}
}

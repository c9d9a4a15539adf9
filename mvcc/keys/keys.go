// Package keys has the first byte of every kind of row that mvcc stores in the
// engine. Whoever shares the engine keeps to other bytes: range/keys has the
// whole map, and a test that no two kinds collide.
package keys

// Prefixes of mvcc's rows, one byte each.
const (
	VersionPrefix  byte = 0x03
	EventPrefix    byte = 0x04
	CountPrefix    byte = 0x05
	MVCCMetaPrefix byte = 0x06
	LeasePrefix    byte = 0x07
)

// MVCCMeta returns the key of a row of the mvcc store about itself.
func MVCCMeta(name string) []byte {
	return append([]byte{MVCCMetaPrefix}, name...)
}

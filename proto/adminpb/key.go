package adminpb

import (
	"fmt"
	"strconv"
)

// What KeyText shows, in bytes of the key. Keys that people make up are whole.
const (
	wholeKey = 96
	keyHead  = 64
	keyTail  = 16
)

// KeyText returns a key as the service and its clients show it to people, in
// messages and tables: quoted as a Go string, so that every byte shows. Of a key of
// more than 96 bytes there are the first 64, the last 16, in which keys below one
// long prefix differ, and the length:
//
//	"/a/long/prefix"..."the/end" (4096 bytes)
//
// It is under 400 bytes long, however long the key is.
func KeyText(key []byte) string {
	if len(key) <= wholeKey {
		return strconv.Quote(string(key))
	}
	return fmt.Sprintf("%q...%q (%d bytes)", key[:keyHead], key[len(key)-keyTail:], len(key))
}

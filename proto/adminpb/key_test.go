package adminpb

import (
	"strings"
	"testing"
)

func TestKeyTextIsShortAndSaysSo(t *testing.T) {
	a := func(n int) string { return strings.Repeat("a", n) }
	for key, want := range map[string]string{
		"":            `""`,
		"k":           `"k"`,
		"-":           `"-"`,
		"b\x00\xff\"": `"b\x00\xff\""`,
		a(96):         `"` + a(96) + `"`,
		// Keys below one long prefix differ at the end.
		a(97) + "1":      `"` + a(64) + `"..."` + a(15) + `1" (98 bytes)`,
		a(97) + "2":      `"` + a(64) + `"..."` + a(15) + `2" (98 bytes)`,
		a(4096) + "\xff": `"` + a(64) + `"..."` + a(15) + `\xff" (4097 bytes)`,
		// No whole key looks like a shortened one.
		`a"..."b" (98 bytes)`: `"a\"...\"b\" (98 bytes)"`,
	} {
		if got := KeyText([]byte(key)); got != want {
			t.Errorf("%.100q (%d bytes): got %s, want %s", key, len(key), got, want)
		}
	}
}

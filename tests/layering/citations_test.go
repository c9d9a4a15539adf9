package layering

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Rules are cited by ids: those of etcd's behaviour and of recorded histories with a
// name before them (etcd/W10), those of the protocol and the wanted differences
// without (R4, I2, D1).
var (
	named = regexp.MustCompile(`\b(?:etcd|history)/[A-Z]{1,2}\d{1,2}\b`)
	// bare matches every id with letters that some document uses; what has a name
	// before it, or is part of a word, does not count.
	bare = regexp.MustCompile(`(?:^|[^A-Za-z0-9_/.\-])((?:[CDIKPRTWX]|MA|RS)\d{1,2})\b`)
)

// rules returns the ids that the documents define.
func rules(t *testing.T) map[string]bool {
	t.Helper()
	defined := make(map[string]bool)
	for name, definition := range map[string]string{
		"docs/contract.md":    `(?m)^- \*\*((?:etcd|history)/[A-Z]{1,2}\d{1,2})\*\* `,
		"docs/revisions.md":   `(?m)^(?:\*\*(R\d{1,2}) \(|(I\d) )`,
		"docs/differences.md": `(?m)^### (D\d{1,2}) `,
	} {
		text, err := os.ReadFile(filepath.Join(moduleRoot(t), filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(definition).FindAllStringSubmatch(string(text), -1)
		if len(found) == 0 {
			t.Fatalf("%s defines nothing", name)
		}
		for _, m := range found {
			id := strings.Join(m[1:], "")
			if defined[id] {
				t.Errorf("%s defines %s twice", name, id)
			}
			defined[id] = true
		}
	}
	return defined
}

// texts calls visit for what people write in this repository: whole documents and test
// data, of Go files each comment.
func texts(t *testing.T, visit func(where, text string)) {
	t.Helper()
	for _, f := range goFiles(t) {
		for _, group := range f.syntax.Comments {
			for _, c := range group.List {
				visit(f.position(c), c.Text)
			}
		}
	}
	for _, name := range moduleFiles(t) {
		switch ext := path.Ext(name); {
		case ext == ".md", ext == ".proto", path.Base(path.Dir(name)) == "testdata" && (ext == ".txt" || ext == ""):
			text, err := os.ReadFile(filepath.Join(moduleRoot(t), filepath.FromSlash(name)))
			if err != nil {
				t.Fatal(err)
			}
			for i, line := range strings.Split(string(text), "\n") {
				visit(name+":"+strconv.Itoa(i+1), line)
			}
		}
	}
}

func TestCitedRulesExist(t *testing.T) {
	defined := rules(t)
	cited := 0
	texts(t, func(where, text string) {
		for _, id := range named.FindAllString(text, -1) {
			cited++
			if !defined[id] {
				t.Errorf("%s: %s stands in no document: rules of etcd's behaviour are in docs/contract.md", where, id)
			}
		}
		for _, m := range bare.FindAllStringSubmatch(text, -1) {
			cited++
			if !defined[m[1]] {
				t.Errorf("%s: %s stands in no document: cite etcd's behaviour as etcd/%s (docs/contract.md), what a history must show as history/%s, "+
					"the protocol as R0 to R11 and I1 to I8 (docs/revisions.md), a difference as in docs/differences.md", where, m[1], m[1], m[1])
			}
		}
	})
	if cited < 100 {
		t.Errorf("only %d citations were found: the test does not look where they are", cited)
	}
}

// What the test above takes for a citation, and what not.
func TestCitationsAreRecognized(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"as etcd does (etcd/W10, etcd/MA4)", "etcd/W10 etcd/MA4"},
		{"rule R4; I2 holds", "R4 I2"},
		{"W10 alone", "W10"},
		{"the ledger's R and m(X), MarkR5x, tests/etcd/C, x.R3, k-W1", ""},
	} {
		got := named.FindAllString(c.text, -1)
		for _, m := range bare.FindAllStringSubmatch(c.text, -1) {
			got = append(got, m[1])
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%q cites %q, want %q", c.text, s, c.want)
		}
	}
}

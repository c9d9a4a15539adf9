// Package layering keeps the rules of this repository that a compiler does not:
// who may import whom, and a few habits. Each failure says what to do.
package layering

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/hawser-kv/hawser"

// picture says for each package which packages of this module it may import,
// lowest first. "x/..." is x and all below it. Words with a "!" are packages of
// others, or of Go, that it must not import: they would let a clock, the
// network or Raft into code that is a pure state machine.
//
// proxy, range and placement never import each other: they share messages in
// proto and interfaces that each declares for itself; cmd/node wires them.
const picture = `
# messages, keys of the engine
proto/adminpb          proto/rangepb
proto/placementpb      proto/rangepb
proto/rangepb
range/keys

# data at revisions: no Raft, no network, no clock
mvcc/keys
mvcc/spans                                                                 !time !net !go.etcd.io/raft/v3 !google.golang.org/grpc
mvcc/counts            mvcc/keys                                           !time !net !go.etcd.io/raft/v3 !google.golang.org/grpc
mvcc                   mvcc/... proto/...                                  !time !net !go.etcd.io/raft/v3 !google.golang.org/grpc

# ranges
range/shortage
range/raftlog          range/keys proto/...                                !time !net !google.golang.org/grpc
range/raftgroup        range/raftlog range/keys proto/...                  !time !net !google.golang.org/grpc
range/replica          range/raftgroup range/raftlog range/keys range/shortage mvcc mvcc/spans proto/...  !time !net !google.golang.org/grpc
range/engine           range/raftlog range/keys range/shortage mvcc proto/...             !net !google.golang.org/grpc
range/store            range/engine range/replica range/raftgroup range/raftlog range/keys range/shortage mvcc proto/...  !net !google.golang.org/grpc
range/host             range/store range/engine range/replica range/keys range/shortage mvcc proto/...  !net !google.golang.org/grpc
range/compactor        range/keys range/shortage mvcc proto/...                           !net !google.golang.org/grpc
range/materialiser     range/keys range/shortage mvcc proto/...                           !net !google.golang.org/grpc

# placement
placement/meta         range/keys proto/...                                !time !net !google.golang.org/grpc
placement/sequencer    placement/meta range/keys proto/...                 !time !net !google.golang.org/grpc
placement/autocompact
placement/client       range/keys proto/...                                !time !net !google.golang.org/grpc
placement              placement/... range/keys proto/...                  !net !google.golang.org/grpc

# proxy
proxy/txn              mvcc proto/...                                      !time !net !google.golang.org/grpc
proxy/router           proxy/txn mvcc proto/...                            !net !google.golang.org/grpc
proxy/watch            mvcc mvcc/spans proto/...                                      !net !google.golang.org/grpc
proxy                  proxy/... mvcc proto/...

# cmd knows everybody
cmd/version
cmd/config
cmd/node               cmd/config cmd/version proxy/... range/... placement/... mvcc/... proto/...
cmd/hawser             cmd/config cmd/version cmd/node proto/...

# tests may import everything
tests/...              cmd/... proxy/... range/... placement/... mvcc/... proto/... tests/...
`

// rule is one line of the picture.
type rule struct {
	pattern   string
	allowed   []string
	forbidden []string
}

func parsePicture(t *testing.T) []rule {
	t.Helper()
	var rules []rule
	for line := range strings.Lines(picture) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		r := rule{pattern: words[0]}
		for _, w := range words[1:] {
			if name, ok := strings.CutPrefix(w, "!"); ok {
				r.forbidden = append(r.forbidden, name)
			} else {
				r.allowed = append(r.allowed, w)
			}
		}
		rules = append(rules, r)
	}
	return rules
}

// matches tells if a pattern of the picture covers a package.
func matches(pattern, pkg string) bool {
	base, tree := strings.CutSuffix(pattern, "/...")
	return pkg == base || tree && strings.HasPrefix(pkg, base+"/")
}

func findRule(rules []rule, pkg string) *rule {
	for i := range rules {
		if matches(rules[i].pattern, pkg) {
			return &rules[i]
		}
	}
	return nil
}

// violations checks one import of one package against the picture.
func violations(rules []rule, pkg, imported string) (remedy string, bad bool) {
	r := findRule(rules, pkg)
	if r == nil {
		return "has no line in the picture of tests/layering: add one, at the height where it belongs", true
	}
	ours, isOurs := strings.CutPrefix(imported, module+"/")
	if !isOurs {
		for _, f := range r.forbidden {
			if matches(f+"/...", imported) {
				return "must not import " + imported + ": let the caller pass what is needed, through an interface declared here", true
			}
		}
		return "", false
	}
	for _, a := range r.allowed {
		if matches(a, ours) {
			return "", false
		}
	}
	return "must not import " + ours + ": declare an interface with the methods used and let cmd/node pass the value; " +
		"if the design did change, change the picture, ARCHITECTURE.md and the code together", true
}

func TestImportsFollowThePicture(t *testing.T) {
	rules := parsePicture(t)
	seen := make(map[string]bool)
	for _, name := range moduleFiles(t) {
		if strings.HasSuffix(name, ".go") { // generated ones too
			seen[path.Dir(name)] = true
		}
	}
	for _, f := range goFiles(t) {
		pkg := path.Dir(f.name)
		if f.isTest || pkg == "." {
			continue // a test may bring what it needs; the root has no code
		}
		if findRule(rules, pkg) == nil {
			remedy, _ := violations(rules, pkg, "")
			t.Errorf("%s %s", pkg, remedy)
			continue
		}
		for _, spec := range f.syntax.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if remedy, bad := violations(rules, pkg, imported); bad {
				t.Errorf("%s: %s %s", f.position(spec), pkg, remedy)
			}
		}
	}
	for _, r := range rules {
		if !slices.ContainsFunc(sortedKeys(seen), func(pkg string) bool { return matches(r.pattern, pkg) }) {
			t.Errorf("the picture of tests/layering has a line for %s, which does not exist: remove the line", r.pattern)
		}
	}
}

// The checker itself: a test that cannot fail proves nothing.
func TestThePictureRefusesWhatItShould(t *testing.T) {
	rules := parsePicture(t)
	for _, tc := range []struct {
		pkg, imported string
		bad           bool
	}{
		{"proxy", module + "/range/store", true},
		{"proxy/router", module + "/placement/sequencer", true},
		{"range/store", module + "/proxy", true},
		{"range/host", module + "/proxy/router", true},
		{"range/host", module + "/placement/client", true},
		{"range/store", module + "/range/host", true},
		{"range/engine", module + "/range/replica", true},
		{"range/engine", "net", true},
		{"placement/meta", module + "/mvcc", true},
		{"mvcc", module + "/range/replica", true},
		{"mvcc", module + "/range/keys", true},
		{"mvcc", "time", true},
		{"mvcc", "net/http", true},
		{"mvcc", "go.etcd.io/raft/v3/raftpb", true},
		{"range/replica", "go.etcd.io/raft/v3", false},
		{"placement/sequencer", "time", true},
		{"cmd/node", module + "/placement/sequencer", false},
		{"cmd/node", module + "/tests/compat", true},
		{"tests/compat", module + "/cmd/node", false},
		{"nowhere", "fmt", true},
	} {
		if _, bad := violations(rules, tc.pkg, tc.imported); bad != tc.bad {
			t.Errorf("%s imports %s: refused %v, want %v", tc.pkg, tc.imported, bad, tc.bad)
		}
	}
}

// goFile is one parsed Go file of the module.
type goFile struct {
	name   string // slash path from the module's root
	isTest bool
	set    *token.FileSet
	syntax *ast.File
}

func (f *goFile) position(n ast.Node) string {
	return f.name + ":" + strconv.Itoa(f.set.Position(n.Pos()).Line)
}

// goFiles parses every Go file of this module that is not generated.
func goFiles(t *testing.T) []*goFile {
	t.Helper()
	root := moduleRoot(t)
	var files []*goFile
	for _, name := range moduleFiles(t) {
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, ".pb.go") || strings.HasPrefix(name, ".") {
			continue
		}
		set := token.NewFileSet()
		syntax, err := parser.ParseFile(set, filepath.Join(root, name), nil, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, &goFile{name: name, isTest: strings.HasSuffix(name, "_test.go"), set: set, syntax: syntax})
	}
	if len(files) == 0 {
		t.Fatal("no Go files found")
	}
	return files
}

// moduleRoot is the folder with go.mod, above this package.
func moduleRoot(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "go.mod")); err != nil {
		t.Fatal(err)
	}
	return root
}

// moduleFiles lists the files of the repository by their slash path from its
// root, without what is built or downloaded.
func moduleFiles(t *testing.T) []string {
	t.Helper()
	root := moduleRoot(t)
	var names []string
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{".git", "bin", "data"}, name) || strings.HasSuffix(name, ".hawser") {
				return filepath.SkipDir
			}
			return nil
		}
		if d.Type().IsRegular() && name != ".git" { // in a linked work tree git keeps a file there
			names = append(names, filepath.ToSlash(name))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

package layering

import (
	"bytes"
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// calls visits every call of pkg.name in a file, where pkg is a plain name.
func calls(f *goFile, pkg, name string, visit func(*ast.CallExpr)) {
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		selector, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || selector.Sel.Name != name {
			return true
		}
		if x, ok := selector.X.(*ast.Ident); ok && x.Name == pkg {
			visit(call)
		}
		return true
	})
}

func TestNoTestSleeps(t *testing.T) {
	for _, f := range goFiles(t) {
		if !f.isTest && !strings.HasPrefix(f.name, "tests/") {
			continue
		}
		calls(f, "time", "Sleep", func(c *ast.CallExpr) {
			t.Errorf("%s: time.Sleep makes a test slow and flaky: wait for the condition (a channel, a ticker with a deadline), "+
				"drive ticks by hand, or use testing/synctest", f.position(c))
		})
	}
}

func TestEverySkipHasAReason(t *testing.T) {
	for _, f := range goFiles(t) {
		for _, receiver := range []string{"t", "b", "f", "tb"} {
			for _, name := range []string{"Skip", "SkipNow"} {
				calls(f, receiver, name, func(c *ast.CallExpr) {
					if len(c.Args) == 0 {
						t.Errorf("%s: say in the call why the test is skipped", f.position(c))
					}
				})
			}
		}
	}
}

func TestNoPackageIsNamedForNothing(t *testing.T) {
	banned := []string{"util", "utils", "common", "helper", "helpers", "types", "constants", "misc", "base", "shared"}
	seen := make(map[string]bool)
	for _, f := range goFiles(t) {
		dir := path.Dir(f.name)
		if seen[dir] {
			continue
		}
		seen[dir] = true
		if name := strings.TrimSuffix(f.syntax.Name.Name, "_test"); slices.Contains(banned, name) || slices.Contains(banned, path.Base(dir)) {
			t.Errorf("%s: package %s: a helper lives beside its user; name a package after its main noun", dir, name)
		}
		if name := strings.TrimSuffix(f.syntax.Name.Name, "_test"); dir != "." && name != "main" && name != path.Base(dir) {
			t.Errorf("%s: package %s: folder and package have the same name", dir, name)
		}
	}
}

// `range` is a keyword: a package there could not be imported by its name.
func TestRangeFolderHasNoGoFilesOfItsOwn(t *testing.T) {
	for _, f := range goFiles(t) {
		if path.Dir(f.name) == "range" {
			t.Errorf("%s: put it into a folder below range/", f.name)
		}
	}
}

func TestProductDoesNotImportTesting(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.isTest || strings.HasPrefix(f.name, "tests/") {
			continue
		}
		for _, spec := range f.syntax.Imports {
			if p := strings.Trim(spec.Path.Value, `"`); p == "testing" || strings.HasPrefix(p, "testing/") {
				t.Errorf("%s: %s imports %s: move it to a _test.go file or below tests/", f.position(spec), f.name, p)
			}
		}
	}
}

// unwanted are texts that no file of the repository may have.
var unwanted = []struct {
	pattern *regexp.Regexp
	goOnly  bool
	remedy  string
}{
	{
		// Written in two parts, so that this file does not contain them.
		pattern: regexp.MustCompile(`(^|[\s"'=(:` + "`" + `])/(ro` + `ot|wo` + `rk|ho` + `me|Us` + `ers)/[A-Za-z]`),
		remedy:  "a path of one machine: use a path from the repository, t.TempDir, or a flag",
	},
	{
		pattern: regexp.MustCompile(`pro` + `xy\.golang|regis` + `try\.npmjs|de` + `b\.debian`),
		remedy:  "the host of one registry: builds use whatever the machine is set up for",
	},
	{
		pattern: regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`),
		goOnly:  true,
		remedy:  "do it, or describe the limit in the comment and in DESIGN.md",
	},
}

func TestNoUnwantedText(t *testing.T) {
	root := moduleRoot(t)
	for _, name := range moduleFiles(t) {
		content, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.IndexByte(content, 0) >= 0 || strings.HasSuffix(name, ".pb.go") || strings.Contains(name, "testdata/fuzz/") {
			continue
		}
		for number, line := range bytes.Split(content, []byte("\n")) {
			for _, u := range unwanted {
				if u.goOnly && !strings.HasSuffix(name, ".go") {
					continue
				}
				if m := u.pattern.Find(line); m != nil {
					t.Errorf("%s:%d: %q: %s", name, number+1, m, u.remedy)
				}
			}
		}
	}
}

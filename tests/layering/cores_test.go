package layering

import (
	"bufio"
	"bytes"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// cores are the packages that are deterministic state machines, driven from
// outside: what they do follows from what they are given. Whole-cluster
// simulation rests on it.
var cores = []string{
	"mvcc", "mvcc/counts",
	"range/raftlog", "range/raftgroup", "range/replica",
	"placement/meta", "placement/sequencer",
	"proxy/txn",
}

// anyOrder is what a comment beside a loop over a map must say.
const anyOrder = "any order"

func TestCoresStartNoGoroutineAndReadNoClock(t *testing.T) {
	checkCores(t, func(pkg *typedPackage) {
		for _, complaint := range pkg.goroutinesAndClocks() {
			t.Error(complaint)
		}
	})
}

func TestCoresLetNoMapOrderOut(t *testing.T) {
	checkCores(t, func(pkg *typedPackage) {
		for _, complaint := range pkg.mapLoops() {
			t.Error(complaint)
		}
	})
}

// The checkers themselves.
func TestHabitsOfCoresAreSeen(t *testing.T) {
	const source = `package p
import "math/rand/v2"
type table map[string]int
func f(m table, c chan int) (out []string) {
	go func() {}()
	select { case <-c: default: }
	_ = rand.Int()
	for k := range m { out = append(out, k) }
	// In any order: nothing is kept of it.
	for k := range m { _ = k }
	for range m { break }
	for k := range out { _ = k }
	return out
}`
	set := token.NewFileSet()
	syntax, err := parser.ParseFile(set, "p/p.go", source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	exports := exportData(t, "math/rand/v2")
	pkg := checkTypes(t, "p", set, []*ast.File{syntax}, exports)
	if got := pkg.goroutinesAndClocks(); len(got) != 2 {
		t.Errorf("goroutines, clocks and chance: %q", got)
	}
	if got := pkg.mapLoops(); len(got) != 2 {
		t.Errorf("loops over maps: %q", got)
	}
}

func checkCores(t *testing.T, visit func(*typedPackage)) {
	t.Helper()
	args := make([]string, len(cores))
	for i, c := range cores {
		args[i] = module + "/" + c
	}
	exports := exportData(t, args...)
	for _, core := range cores {
		set := token.NewFileSet()
		var files []*ast.File
		for _, name := range moduleFiles(t) {
			if path.Dir(name) != core || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
				continue
			}
			if built, err := buildsHere(name); err != nil {
				t.Fatal(err)
			} else if !built {
				continue
			}
			f, err := parser.ParseFile(set, filepath.Join(moduleRoot(t), name), nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		if len(files) == 0 {
			t.Fatalf("no files in %s: mend the list of cores", core)
		}
		visit(checkTypes(t, module+"/"+core, set, files, exports))
	}
}

// buildsHere says that a file belongs to the build without tags.
func buildsHere(name string) (bool, error) {
	content, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(name)))
	if err != nil {
		return false, err
	}
	line, _, _ := strings.Cut(string(content), "package ")
	return !strings.Contains(line, "//go:build") || strings.Contains(line, "//go:build !"), nil
}

// exportData finds the compiled form of packages and all that they import.
func exportData(t *testing.T, packages ...string) map[string]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}, packages...)...)
	cmd.Dir = moduleRoot(t)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	exports := make(map[string]string)
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		if name, file, ok := strings.Cut(s.Text(), " "); ok && file != "" {
			exports[name] = file
		}
	}
	return exports
}

// typedPackage is a package with the types of its expressions.
type typedPackage struct {
	set   *token.FileSet
	files []*ast.File
	info  *types.Info
}

func checkTypes(t *testing.T, name string, set *token.FileSet, files []*ast.File, exports map[string]string) *typedPackage {
	t.Helper()
	p := &typedPackage{set: set, files: files, info: &types.Info{
		Types: make(map[ast.Expr]types.TypeAndValue), Uses: make(map[*ast.Ident]types.Object),
	}}
	conf := types.Config{Importer: importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })}
	if _, err := conf.Check(name, set, files, p.info); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *typedPackage) at(n ast.Node, says string) string {
	pos := p.set.Position(n.Pos())
	return path.Base(path.Dir(filepath.ToSlash(pos.Filename))) + "/" + filepath.Base(pos.Filename) + ":" + strconv.Itoa(pos.Line) + ": " + says
}

// goroutinesAndClocks finds what makes a core's doings depend on more than its
// input.
func (p *typedPackage) goroutinesAndClocks() (complaints []string) {
	sources := []string{"math/rand", "math/rand/v2", "crypto/rand", "time"}
	for _, f := range p.files {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				complaints = append(complaints, p.at(n, "a core starts no goroutine: whoever drives it does"))
			case *ast.SelectorExpr:
				fn, ok := p.info.Uses[n.Sel].(*types.Func)
				if ok && fn.Pkg() != nil && slices.Contains(sources, fn.Pkg().Path()) && fn.Signature().Recv() == nil {
					complaints = append(complaints, p.at(n, "a core has no clock and no chance of its own ("+fn.FullName()+"): let the caller pass what is needed"))
				}
			}
			return true
		})
	}
	return complaints
}

// mapLoops finds loops over maps whose order nobody has thought of.
func (p *typedPackage) mapLoops() (complaints []string) {
	for _, f := range p.files {
		said := make(map[int]bool) // lines on or below a comment that says it
		for _, group := range f.Comments {
			if strings.Contains(strings.ToLower(group.Text()), anyOrder) {
				for line := p.set.Position(group.Pos()).Line; line <= p.set.Position(group.End()).Line+1; line++ {
					said[line] = true
				}
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			loop, ok := n.(*ast.RangeStmt)
			if !ok {
				return true
			}
			if _, isMap := p.info.Types[loop.X].Type.Underlying().(*types.Map); isMap && !said[p.set.Position(loop.Pos()).Line] {
				complaints = append(complaints, p.at(loop, "a loop over a map has a new order each time: sort the keys, keep another structure, or say in a comment on the line "+
					`above why it may go in `+anyOrder))
			}
			return true
		})
	}
	return complaints
}

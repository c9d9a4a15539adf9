// Package etcdtools gives tests the real etcd: it builds the commands pinned by tests/etcd/go.mod and
// tests/etcd/benchmark/go.mod, and starts and stops a one-member etcd server.
//
// Binaries are built once and shared by all test packages and runs; see Path.
package etcdtools

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// Tool is one of etcd's commands.
type Tool struct {
	// name is the file name of the binary.
	name string
	// module is the directory, below the root of the repository, of the module that pins the command.
	module string
	// pkg is the command's import path.
	pkg string
}

// The commands that tests can ask for.
var (
	Server    = Tool{"etcd", "tests/etcd", "go.etcd.io/etcd/server/v3"}
	Etcdctl   = Tool{"etcdctl", "tests/etcd", "go.etcd.io/etcd/etcdctl/v3"}
	Etcdutl   = Tool{"etcdutl", "tests/etcd", "go.etcd.io/etcd/etcdutl/v3"}
	Benchmark = Tool{"benchmark", "tests/etcd/benchmark", "go.etcd.io/etcd/v3/tools/benchmark"}
)

// Path returns the path of the tool's binary and builds it first if no test has done so yet.
//
// The binary lives in <user cache>/hawser-test/<key>/, where key is made from the pinning go.mod and go.sum and the Go version,
// so a new pin or a new compiler builds anew. A file lock lets concurrent test processes share one build.
func (tool Tool) Path(t testing.TB) string {
	t.Helper()
	path, err := tool.Build()
	if err != nil {
		t.Fatalf("build %s: %v", tool.name, err)
	}
	return path
}

// Build is Path for a program that is no test.
func (tool Tool) Build() (string, error) {
	root, err := repositoryRoot()
	if err != nil {
		return "", err
	}
	moduleDir := filepath.Join(root, filepath.FromSlash(tool.module))
	dir, err := tool.cacheDir(moduleDir)
	if err != nil {
		return "", err
	}
	binary := filepath.Join(dir, tool.name)
	unlock, err := lockFile(filepath.Join(dir, tool.name+".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	// The rename makes a half-written binary of a killed build invisible.
	unfinished := binary + ".unfinished"
	build := exec.Command("go", "build", "-o", unfinished, tool.pkg)
	build.Dir = moduleDir
	build.Env = append(os.Environ(), "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build %s in %s: %w\n%s", tool.pkg, tool.module, err, out)
	}
	if err := os.Rename(unfinished, binary); err != nil {
		return "", err
	}
	return binary, nil
}

// cacheDir makes and returns the directory for binaries pinned by the module in moduleDir.
func (tool Tool) cacheDir(moduleDir string) (string, error) {
	hash := sha256.New()
	fmt.Fprintln(hash, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for _, name := range []string{"go.mod", "go.sum"} {
		f, err := os.Open(filepath.Join(moduleDir, name))
		if err != nil {
			return "", err
		}
		_, err = io.Copy(hash, f)
		f.Close()
		if err != nil {
			return "", err
		}
	}
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir()
	}
	dir := filepath.Join(base, "hawser-test", hex.EncodeToString(hash.Sum(nil))[:16])
	return dir, os.MkdirAll(dir, 0o700)
}

// lockFile takes an exclusive lock on the file at path, waiting for other processes, and returns the function that releases it.
func lockFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	// Closing the file releases the lock.
	return func() { f.Close() }, nil
}

// repositoryRoot returns the directory of Hawser's go.mod. Tests run inside their package's directory, so the go command knows it.
func repositoryRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	mod := strings.TrimSpace(string(out))
	if mod == "" || mod == os.DevNull {
		return "", fmt.Errorf("the working directory is outside of a module")
	}
	return filepath.Dir(mod), nil
}

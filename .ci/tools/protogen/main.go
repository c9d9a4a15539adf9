// Command protogen turns the .proto files below a directory into Go code that
// lies next to them. It is protoc for this repository: the compiler is
// protocompile, the generators are protoc-gen-go and protoc-gen-go-grpc, all
// built from this module, so that `make generate` needs nothing but Go.
//
// Usage: protogen -plugins DIR [-check] ROOT
//
// ROOT is the folder that holds the proto folder: files import each other by
// their path from there ("proto/rangepb/range.proto"). The plugins are
// executables in the -plugins folder. With -check nothing is written: the exit
// code is 1 if a generated file is missing, differs, or has lost its .proto.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

// plugins are run in this order; each writes files of its own names.
var plugins = []struct{ name, parameter string }{
	{"protoc-gen-go", "paths=source_relative"},
	{"protoc-gen-go-grpc", "paths=source_relative"},
}

func main() {
	pluginDir := flag.String("plugins", "", "folder with protoc-gen-go and protoc-gen-go-grpc")
	checkOnly := flag.Bool("check", false, "compare with the files on disk instead of writing")
	flag.Parse()
	if flag.NArg() != 1 || *pluginDir == "" {
		flag.Usage()
		os.Exit(2)
	}
	root := flag.Arg(0)
	generated, err := generate(root, *pluginDir)
	if err == nil {
		if *checkOnly {
			err = check(root, generated)
		} else {
			err = write(root, generated)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

// generate returns the generated files by their slash path from root.
func generate(root, pluginDir string) (map[string]string, error) {
	generated := make(map[string]string)
	names, err := filesBelow(root, ".proto")
	if err != nil || len(names) == 0 {
		return generated, err
	}
	files, err := compile(root, names)
	if err != nil {
		return nil, err
	}
	for _, p := range plugins {
		request := &pluginpb.CodeGeneratorRequest{
			FileToGenerate: names,
			Parameter:      proto.String(p.parameter),
			ProtoFile:      files,
		}
		response, err := runPlugin(filepath.Join(pluginDir, p.name), request)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		for _, f := range response.File {
			generated[f.GetName()] = f.GetContent()
		}
	}
	return generated, nil
}

func write(root string, generated map[string]string) error {
	for name, content := range generated {
		path := filepath.Join(root, filepath.FromSlash(name))
		if old, err := os.ReadFile(path); err == nil && string(old) == content {
			continue // keep the modification time: nothing needs a rebuild
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
		fmt.Println("wrote", name)
	}
	return nil
}

func check(root string, generated map[string]string) error {
	var problems []error
	for name, content := range generated {
		old, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			problems = append(problems, fmt.Errorf("%s is missing; run `make generate` and commit it", name))
		case err != nil:
			problems = append(problems, err)
		case string(old) != content:
			problems = append(problems, fmt.Errorf("%s is not what its .proto generates; run `make generate` and commit it", name))
		}
	}
	present, err := filesBelow(root, ".pb.go")
	if err != nil {
		return err
	}
	for _, name := range present {
		if _, ok := generated[name]; !ok {
			problems = append(problems, fmt.Errorf("%s has no .proto any more; remove it", name))
		}
	}
	slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(problems...)
}

// filesBelow lists the files below root/proto with the given end of name, by
// their slash path from root, sorted, so that no output depends on the file
// system. A root without a proto folder has none.
func filesBelow(root, suffix string) ([]string, error) {
	var names []string
	err := filepath.WalkDir(filepath.Join(root, "proto"), func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if !d.IsDir() && strings.HasSuffix(path, suffix) {
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			names = append(names, filepath.ToSlash(rel))
		}
		return nil
	})
	slices.Sort(names)
	return names, err
}

// compile returns the descriptors of the named files and of all they import,
// each after its imports, as a generator expects them.
func compile(root string, names []string) ([]*descriptorpb.FileDescriptorProto, error) {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{root}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	linked, err := compiler.Compile(context.Background(), names...)
	if err != nil {
		return nil, err
	}
	var files []*descriptorpb.FileDescriptorProto
	seen := make(map[string]bool)
	var visit func(f protoreflect.FileDescriptor)
	visit = func(f protoreflect.FileDescriptor) {
		if seen[f.Path()] {
			return
		}
		seen[f.Path()] = true
		imports := f.Imports()
		for i := range imports.Len() {
			visit(imports.Get(i).FileDescriptor)
		}
		files = append(files, protoutil.ProtoFromFileDescriptor(f))
	}
	for _, f := range linked {
		visit(f)
	}
	return files, nil
}

func runPlugin(plugin string, request *pluginpb.CodeGeneratorRequest) (*pluginpb.CodeGeneratorResponse, error) {
	input, err := proto.Marshal(request)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(plugin)
	cmd.Stdin = bytes.NewReader(input)
	cmd.Stderr = os.Stderr
	output, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(output, &response); err != nil {
		return nil, err
	}
	if response.Error != nil {
		return nil, errors.New(response.GetError())
	}
	return &response, nil
}

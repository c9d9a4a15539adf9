// Command hawser is the server and the operators' tool in one binary: started
// with flags it serves, started with a sub-command it talks to a server.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/hawser-kv/hawser/cmd/config"
)

// Exit codes, for scripts. They are part of the interface: see docs/cli.md.
const (
	exitFailed       = 1 // anything that has no code of its own
	exitUsage        = 2 // the command line or the configuration is wrong
	exitNoAnswer     = 3 // no server answered in time
	exitNotHawser    = 4 // a server answered, but it is not Hawser
	exitNotFound     = 5 // no range with that id
	exitBoundary     = 6 // the key is a boundary already
	exitPrecondition = 7 // the range cannot be split now
)

// exitError is an error with the exit code that it asks for.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func failf(code int, format string, args ...any) error {
	return &exitError{code: code, err: fmt.Errorf(format, args...)}
}

// app is one run of the program with its seams: what it writes to, what it
// reads its environment from, and how a node is started.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	environ        []string
	signals        <-chan os.Signal
	start          startFunc
	// begun: the command line was right, and its command runs.
	begun bool
}

func main() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	a := &app{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		environ: os.Environ(),
		signals: signals,
		start:   startNode,
	}
	os.Exit(a.run(os.Args[1:]))
}

// run executes one command line and returns the exit code.
func (a *app) run(args []string) int {
	root := a.rootCommand()
	root.SetArgs(doubleDashes(args))
	err := root.Execute()
	if err == nil {
		return 0
	}
	fmt.Fprintln(a.stderr, "Error:", config.PlainText(err.Error()))
	var exit *exitError
	if errors.As(err, &exit) {
		return exit.code
	}
	if a.begun {
		return exitFailed
	}
	return exitUsage // from cobra itself: unknown command, wrong arguments
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "hawser",
		Short: "A key-value store with etcd's API, spread over many Raft groups",
		Long: `Without a sub-command, hawser starts a server. It takes etcd's flags and
ETCD_* variables; what is not built yet is refused by name.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentPreRun = func(*cobra.Command, []string) { a.begun = true }
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.Flags().SortFlags = false
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return failf(exitUsage, "%w", err) })
	printVersion := root.Flags().Bool("version", false, "print the version and exit")
	source := config.NewSource(root.Flags())
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if *printVersion {
			return writeVersion(a.stdout, outputTable)
		}
		return a.serve(cmd.Context(), source)
	}
	for _, cmd := range []*cobra.Command{a.versionCommand(), a.rangeCommand()} {
		refuseSecondValues(cmd)
		root.AddCommand(cmd)
	}
	return root
}

var singleDash = regexp.MustCompile(`^-[a-z][a-z0-9-]+(=|$)`)

// doubleDashes turns "-name x" into "--name x" in a server's command line: etcd
// takes both. Sub-commands are ours and keep the usual meaning of one dash.
func doubleDashes(args []string) []string {
	if len(args) == 0 || !strings.HasPrefix(args[0], "-") {
		return args
	}
	out := make([]string, len(args))
	for i, arg := range args {
		if singleDash.MatchString(arg) {
			arg = "-" + arg
		}
		out[i] = arg
	}
	return out
}

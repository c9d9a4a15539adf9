package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/hawser-kv/hawser/cmd/version"
)

func (a *app) versionCommand() *cobra.Command {
	var format outputFormat
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this binary",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return writeVersion(a.stdout, format) },
	}
	format.addFlag(cmd)
	return cmd
}

func writeVersion(w io.Writer, format outputFormat) error {
	v := version.Get()
	if format == outputJSON {
		return writeJSON(w, v)
	}
	_, err := fmt.Fprintf(w, "Hawser Version: %s\nGit SHA: %s\nGo Version: %s\nGo OS/Arch: %s\n", v.Version, v.Commit, v.Go, v.Platform)
	return err
}

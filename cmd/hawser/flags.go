package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// refuseSecondValues makes a flag of the command, or of one below it, that is
// given twice with different values an error. pflag takes the last one silently,
// and a part of what was asked for is not done. Flags that are lists grow.
//
// It is for sub-commands. A server's flags are etcd's, where the last one counts.
func refuseSecondValues(cmd *cobra.Command) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if _, list := f.Value.(pflag.SliceValue); !list {
			f.Value = &valueOnce{Value: f.Value}
		}
	})
	for _, sub := range cmd.Commands() {
		refuseSecondValues(sub)
	}
}

// valueOnce is the value of a flag that refuses another one after the first.
type valueOnce struct {
	pflag.Value
	given bool
}

func (v *valueOnce) Set(text string) error {
	first := v.Value.String()
	if err := v.Value.Set(text); err != nil {
		return err
	}
	if v.given && v.Value.String() != first {
		return fmt.Errorf("given already, as %q", first)
	}
	v.given = true
	return nil
}

package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
)

func TestPlainTextHasNoEmptyLinesAndNoCarrier(t *testing.T) {
	for text, want := range map[string]string{
		"":      "",
		"plain": "plain",
		"pebble: table is damaged\n<corruption detail carrier>":       "pebble: table is damaged",
		"pebble: table\n<corruption detail carrier>: while reading x": "pebble: table: while reading x",
		"unknown command \"rnge\"\n\nDid you mean this?\n\trange\n":   "unknown command \"rnge\"\nDid you mean this?\n\trange",
		"one\ntwo":                    "one\ntwo",
		"\n\n":                        "",
		"<corruption detail carrier>": "",
	} {
		if got := PlainText(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestLogHasPlainErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	c := Config{LogOutputs: []string{path}}
	c.EnsureDefaults()
	lg, sync, err := c.NewLogger()
	if err != nil {
		t.Fatal(err)
	}
	damage := errors.New("table\n<corruption detail carrier>")
	lg.With(zap.Error(damage)).Error("background error: "+damage.Error(), zap.NamedError("cause", damage), zap.Int("n", 1))
	lg.Debug("not at this level", zap.Error(damage))
	sync()
	log, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"msg":"background error: table"`, `"error":"table"`, `"cause":"table"`, `"n":1`, `"caller":"config/plain_test.go:`} {
		if !strings.Contains(string(log), want) {
			t.Errorf("no %s in %s", want, log)
		}
	}
	if n := strings.Count(string(log), "\n"); n != 1 || strings.Contains(string(log), "carrier") {
		t.Errorf("%d lines: %s", n, log)
	}
}

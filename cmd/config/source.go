package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// envPrefix begins the environment variables that stand for flags.
const envPrefix = "ETCD_"

// otherVariables begin with envPrefix and are not options of a server: etcd
// itself gives them another meaning.
var otherVariables = []string{"ETCD_UNSUPPORTED_ARCH"}

// Source reads a configuration from where operators put it. NewSource declares
// the flags; after the flag set has been parsed, Load does the rest.
type Source struct {
	fs *pflag.FlagSet
	// text is what each flag was given on the command line.
	text       map[string]*string
	configFile string
}

// NewSource declares every option of the server in fs: those that have an
// effect for --help, those of etcd that have none hidden.
func NewSource(fs *pflag.FlagSet) *Source {
	s := &Source{fs: fs, text: make(map[string]*string)}
	fs.StringVar(&s.configFile, "config-file", "", "YAML or JSON file with all options; flags and environment are then ignored")
	var defaults Config
	defaults.EnsureDefaults()
	for _, o := range options {
		shown := o.get(&defaults)
		if o.name == "data-dir" || o.name == "advertise-client-urls" || o.name == "initial-cluster" {
			shown = "" // follows from other options
		}
		s.declare(o.name, o.usage, shown, o.isBool)
	}
	for _, o := range foreignOptions {
		s.declare(o.name, o.reason, "", o.kind == boolean)
		_ = fs.MarkHidden(o.name) // fails for undeclared names only
	}
	return s
}

func (s *Source) declare(name, usage, shown string, isBool bool) {
	v := &textValue{isBool: isBool}
	s.text[name] = &v.text
	f := s.fs.VarPF(v, name, "", usage)
	f.DefValue = shown
	if isBool {
		f.NoOptDefVal = "true"
	}
}

// textValue keeps the text of a flag; it is checked in Load, with all others,
// so that all problems are reported and not only the first.
type textValue struct {
	text   string
	isBool bool
}

func (v *textValue) Set(s string) error { v.text = s; return nil }
func (v *textValue) String() string     { return v.text }
func (v *textValue) Type() string {
	if v.isBool {
		return "bool"
	}
	return "string"
}

// Load returns the configuration with defaults filled in, and warnings to log.
// environ is the process environment, as of os.Environ. The error lists every
// problem on a line of its own.
//
// With a config file, given by flag or ETCD_CONFIG_FILE, nothing else counts,
// as in etcd. Without, a variable counts where its flag is not given; both
// given is an error, because one of the two is not what the operator believes
// (the flags of etcd's help).
func (s *Source) Load(environ []string) (Config, []string, error) {
	env := make(map[string]string)
	for _, kv := range environ {
		if name, value, ok := strings.Cut(kv, "="); ok && strings.HasPrefix(name, envPrefix) {
			env[name] = value
		}
	}
	path := s.configFile
	if path == "" {
		path = env[variableOf("config-file")]
	}
	l := &loader{}
	if path != "" {
		s.loadFile(l, path, env)
	} else {
		s.loadFlagsAndEnvironment(l, env)
	}
	l.config.EnsureDefaults()
	// Fields that failed to parse hold their default here, so what Validate
	// adds is about other things.
	if err := l.config.Validate(); err != nil {
		l.problems = append(l.problems, err)
	}
	return l.config, append(l.warnings, l.config.Warnings()...), errors.Join(l.problems...)
}

// loader collects values, warnings and problems from one source.
type loader struct {
	config   Config
	warnings []string
	problems []error
}

// mayBeEmpty are the options whose default an empty text stands for, as in etcd.
var mayBeEmpty = []string{"data-dir", "listen-client-http-urls", "listen-metrics-urls"}

// set gives one option its text. label names the source: "--name=x".
func (l *loader) set(o option, label, text string) {
	if text == "" {
		if !slices.Contains(mayBeEmpty, o.name) {
			l.problems = append(l.problems, fmt.Errorf("%s: must not be empty", label))
		}
		return
	}
	if err := o.set(&l.config, text); err != nil {
		l.problems = append(l.problems, fmt.Errorf("%s: %w", label, err))
	}
}

// foreign takes note of an option that etcd has and Hawser has not.
func (l *loader) foreign(o foreignOption, label, text string) {
	warning, err := o.check(text)
	if err != nil {
		l.problems = append(l.problems, fmt.Errorf("%s: %w", label, err))
	}
	if warning != "" {
		l.warnings = append(l.warnings, label+": "+warning)
	}
}

func variableOf(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

func (s *Source) loadFlagsAndEnvironment(l *loader, env map[string]string) {
	// given returns the text of an option and where it stands. An empty
	// variable is as good as none, as in etcd, except for a conflict.
	given := func(name string) (label, text string, ok bool) {
		variable := variableOf(name)
		value, inEnv := env[variable]
		delete(env, variable)
		if s.fs.Changed(name) {
			if inEnv {
				l.problems = append(l.problems, fmt.Errorf("%s and --%s are both set; remove one of them", variable, name))
			}
			text = *s.text[name]
			return "--" + name + "=" + text, text, true
		}
		return variable + "=" + value, value, value != ""
	}
	for _, o := range options {
		if label, text, ok := given(o.name); ok {
			l.set(o, label, text)
		}
	}
	for _, o := range foreignOptions {
		if label, text, ok := given(o.name); ok {
			l.foreign(o, hideSecret(o.name, label), text)
		}
	}
	delete(env, variableOf("config-file"))
	for _, name := range otherVariables {
		delete(env, name)
	}
	for _, name := range sortedKeys(env) {
		// Without the value: an unknown variable may hold anything.
		l.warnings = append(l.warnings, "unrecognized environment variable "+name)
	}
}

// hideSecret leaves a password out of messages.
func hideSecret(name, label string) string {
	if strings.Contains(name, "password") || name == "discovery-user" {
		flag, _, _ := strings.Cut(label, "=")
		return flag
	}
	return label
}

func (s *Source) loadFile(l *loader, path string, env map[string]string) {
	var unused []string
	s.fs.Visit(func(f *pflag.Flag) {
		if _, ours := s.text[f.Name]; ours {
			unused = append(unused, "--"+f.Name)
		}
	})
	delete(env, variableOf("config-file"))
	unused = append(unused, sortedKeys(env)...)
	if len(unused) > 0 {
		l.warnings = append(l.warnings, "ignored because of the config file: "+strings.Join(unused, ", "))
	}
	content, err := readBounded(path)
	if err != nil {
		l.problems = append(l.problems, fmt.Errorf("config file: %w", err))
		return
	}
	parseFile(l, path, content)
}

// maxFileBytes bounds a config file; a real one has a few kilobytes.
const maxFileBytes = 1 << 20

func readBounded(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	if info.Size() > maxFileBytes {
		return nil, fmt.Errorf("%s has %d bytes; more than %d is not a config file", path, info.Size(), maxFileBytes)
	}
	return os.ReadFile(path)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

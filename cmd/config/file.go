package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// nestedOptions are the groups of etcd's config file, with what is put before
// the names inside to get the flag's name.
var nestedOptions = map[string]string{
	"client-transport-security": "",
	"peer-transport-security":   "peer-",
	"socket-options":            "socket-",
}

// nestedNames are the names in a group, with the group's prefix, that differ
// from the flag's.
var nestedNames = map[string]string{
	"allowed-hostname":      "client-cert-allowed-hostname",
	"peer-allowed-cn":       "peer-cert-allowed-cn",
	"peer-allowed-hostname": "peer-cert-allowed-hostname",
}

// parseFile reads a config file: a YAML mapping (JSON is one) from flag names
// to values. An empty value is as good as none, as in etcd; an unknown name is
// an error, unlike in etcd, which takes a misspelt option in silence.
func parseFile(l *loader, path string, content []byte) {
	values, err := flatten(content)
	if err != nil {
		l.problems = append(l.problems, fmt.Errorf("config file %s: %w", path, err))
		return
	}
	label := func(name, text string) string { return fmt.Sprintf("%s: %s: %s", path, name, text) }
	for _, o := range options {
		text, ok := values[o.name]
		delete(values, o.name)
		if !ok || text == "" {
			continue
		}
		l.set(o, label(o.name, text), fileText(o.isDuration, text))
	}
	for _, o := range foreignOptions {
		text, ok := values[o.name]
		delete(values, o.name)
		if !ok || text == "" {
			continue
		}
		l.foreign(o, hideSecretInFile(path, o.name, label(o.name, text)), fileText(o.kind == duration, text))
	}
	for _, name := range sortedKeys(values) {
		l.problems = append(l.problems, fmt.Errorf("%s: unknown option %q", path, name))
	}
}

// fileText turns a duration given as nanoseconds into the text of a flag.
func fileText(isDuration bool, text string) string {
	if isDuration {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return time.Duration(n).String()
		}
	}
	return text
}

func hideSecretInFile(path, name, label string) string {
	if hideSecret(name, "x=y") == "x" {
		return path + ": " + name
	}
	return label
}

// flatten returns the values of a file as text, by flag name. Lists are joined
// by commas.
func flatten(content []byte) (map[string]string, error) {
	values := make(map[string]string)
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	var document yaml.Node
	if err := decoder.Decode(&document); err != nil {
		if errors.Is(err, io.EOF) {
			return values, nil // an empty file changes nothing
		}
		return nil, err
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("has more than one document")
	}
	if len(document.Content) != 1 {
		return values, nil
	}
	if err := flattenMapping(values, document.Content[0], "", true); err != nil {
		return nil, err
	}
	return values, nil
}

func flattenMapping(values map[string]string, node *yaml.Node, prefix string, top bool) error {
	if node.Kind == yaml.ScalarNode && node.Tag == "!!null" {
		return nil
	}
	if node.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: expected `name: value` lines", node.Line)
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			return fmt.Errorf("line %d: a name must be plain text", key.Line)
		}
		if group, nested := nestedOptions[key.Value]; nested && top {
			if err := flattenMapping(values, value, group, false); err != nil {
				return fmt.Errorf("%s: %w", key.Value, err)
			}
			continue
		}
		name := prefix + key.Value
		if flag, renamed := nestedNames[name]; renamed && !top {
			name = flag
		}
		if _, again := values[name]; again {
			return fmt.Errorf("line %d: %s is set twice", key.Line, name)
		}
		text, err := scalarText(value)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		values[name] = text
	}
	return nil
}

func scalarText(node *yaml.Node) (string, error) {
	switch node.Kind {
	case yaml.ScalarNode:
		if node.Tag == "!!null" {
			return "", nil
		}
		return node.Value, nil
	case yaml.SequenceNode:
		items := make([]string, len(node.Content))
		for i, item := range node.Content {
			if item.Kind != yaml.ScalarNode {
				return "", fmt.Errorf("line %d: a list may hold plain values only", item.Line)
			}
			items[i] = item.Value
		}
		return strings.Join(items, ","), nil
	default:
		return "", fmt.Errorf("line %d: expected a value or a list", node.Line)
	}
}

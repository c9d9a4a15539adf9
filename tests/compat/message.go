package compat

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxPrintedBytes bounds how much of a byte field reports show; longer ones are shown with their length.
const maxPrintedBytes = 80

// maxPrintedMessage bounds how much of a message reports show.
const maxPrintedMessage = 4000

// maxDiffLines bounds the lines of a report about one pair of answers.
const maxDiffLines = 30

// quote prints bytes for people.
func quote(b []byte) string {
	if len(b) > maxPrintedBytes {
		return fmt.Sprintf("%q...(%d bytes)", b[:maxPrintedBytes], len(b))
	}
	return fmt.Sprintf("%q", b)
}

// printMessage prints a message for people.
func printMessage(m proto.Message) string {
	if m == nil {
		return "(none)"
	}
	short := proto.Clone(m)
	walk(short.ProtoReflect(), func(m protoreflect.Message) {
		m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			if field.Kind() == protoreflect.BytesKind && !field.IsList() && len(v.Bytes()) > maxPrintedBytes {
				m.Set(field, protoreflect.ValueOfBytes([]byte(fmt.Sprintf("%s...(%d bytes)", v.Bytes()[:maxPrintedBytes], len(v.Bytes())))))
			}
			return true
		})
	})
	text := fmt.Sprintf("%s{%s}", m.ProtoReflect().Descriptor().Name(), prototext.MarshalOptions{}.Format(short))
	if len(text) > maxPrintedMessage {
		text = fmt.Sprintf("%s...(%d characters)", text[:maxPrintedMessage], len(text))
	}
	return text
}

// walk calls fn for m and for every message in it.
func walk(m protoreflect.Message, fn func(protoreflect.Message)) {
	fn(m)
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap() || field.Message() == nil:
		case field.IsList():
			for i := range v.List().Len() {
				walk(v.List().Get(i).Message(), fn)
			}
		default:
			walk(v.Message(), fn)
		}
		return true
	})
}

// diffMessages lists the fields in which two messages differ, as "path: value in a | value in b". Nil equals nil only.
func diffMessages(a, b proto.Message) []string {
	switch {
	case a == nil && b == nil:
		return nil
	case a == nil || b == nil:
		return []string{fmt.Sprintf("message: %s | %s", printMessage(a), printMessage(b))}
	case proto.Equal(a, b):
		return nil
	case a.ProtoReflect().Descriptor() != b.ProtoReflect().Descriptor():
		return []string{fmt.Sprintf("type: %T | %T", a, b)}
	}
	var lines []string
	diffInto(&lines, "", a.ProtoReflect(), b.ProtoReflect())
	if len(lines) > maxDiffLines {
		lines = append(lines[:maxDiffLines], fmt.Sprintf("... and %d more", len(lines)-maxDiffLines))
	}
	return lines
}

func diffInto(lines *[]string, path string, a, b protoreflect.Message) {
	fields := a.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		name := path + string(field.Name())
		inA, inB := a.Has(field), b.Has(field)
		switch {
		case !inA && !inB:
		case field.IsList():
			diffLists(lines, name, field, a.Get(field).List(), b.Get(field).List())
		case field.Message() != nil && inA && inB:
			diffInto(lines, name+".", a.Get(field).Message(), b.Get(field).Message())
		case inA != inB || !a.Get(field).Equal(b.Get(field)):
			*lines = append(*lines, fmt.Sprintf("%s: %s | %s", name, printField(field, a), printField(field, b)))
		}
	}
}

func diffLists(lines *[]string, name string, field protoreflect.FieldDescriptor, a, b protoreflect.List) {
	if a.Len() != b.Len() {
		*lines = append(*lines, fmt.Sprintf("len(%s): %d | %d", name, a.Len(), b.Len()))
	}
	for i := range min(a.Len(), b.Len()) {
		at := fmt.Sprintf("%s[%d]", name, i)
		if field.Message() != nil {
			diffInto(lines, at+".", a.Get(i).Message(), b.Get(i).Message())
		} else if !a.Get(i).Equal(b.Get(i)) {
			*lines = append(*lines, fmt.Sprintf("%s: %v | %v", at, a.Get(i), b.Get(i)))
		}
	}
	longer, which := a, "etcd"
	if b.Len() > a.Len() {
		longer, which = b, "the other"
	}
	for i := min(a.Len(), b.Len()); i < longer.Len(); i++ {
		value := fmt.Sprint(longer.Get(i))
		if field.Message() != nil {
			value = printMessage(longer.Get(i).Message().Interface())
		}
		*lines = append(*lines, fmt.Sprintf("%s[%d]: only in %s: %s", name, i, which, value))
	}
}

func printField(field protoreflect.FieldDescriptor, m protoreflect.Message) string {
	if !m.Has(field) {
		return "(unset)"
	}
	v := m.Get(field)
	switch {
	case field.Message() != nil:
		return printMessage(v.Message().Interface())
	case field.Kind() == protoreflect.BytesKind:
		return quote(v.Bytes())
	case field.Kind() == protoreflect.StringKind:
		return fmt.Sprintf("%q", v.String())
	}
	return strings.TrimSpace(v.String())
}

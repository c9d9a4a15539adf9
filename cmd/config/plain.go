package config

import (
	"strings"

	"go.uber.org/zap/zapcore"
)

// carrier is what an error of the engine that only carries details prints as, on
// a line of its own.
const carrier = "<corruption detail carrier>"

// PlainText returns the text of an error as people read it: without what only
// carries details for programs, and without empty lines.
func PlainText(text string) string {
	if !strings.ContainsAny(text, "\n\r") && !strings.Contains(text, carrier) {
		return text
	}
	var lines []string
	for line := range strings.Lines(strings.ReplaceAll(text, "\n"+carrier, "")) {
		if line = strings.TrimRight(strings.ReplaceAll(line, carrier, ""), " \r\n"); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// plainCore makes the texts of a log plain, whoever writes them.
type plainCore struct{ zapcore.Core }

func (c plainCore) With(fields []zapcore.Field) zapcore.Core {
	return plainCore{c.Core.With(plainFields(fields))}
}

func (c plainCore) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return checked.AddCore(e, c)
	}
	return checked
}

func (c plainCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	e.Message = PlainText(e.Message)
	return c.Core.Write(e, plainFields(fields))
}

// plainFields returns fields with errors as plain text. The caller's stay as they
// are.
func plainFields(fields []zapcore.Field) []zapcore.Field {
	var plain []zapcore.Field
	for i, f := range fields {
		err, isError := f.Interface.(error)
		if f.Type != zapcore.ErrorType || !isError {
			continue
		}
		if plain == nil {
			plain = append(plain, fields...)
		}
		plain[i] = zapcore.Field{Key: f.Key, Type: zapcore.StringType, String: PlainText(err.Error())}
	}
	if plain == nil {
		return fields
	}
	return plain
}

package config

import (
	"fmt"
	"os"
	"path/filepath"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// NewLogger builds the logger that LogLevel, LogFormat and LogOutputs ask for.
// Its lines have etcd's keys (level, ts, caller, msg), so that log pipelines
// made for etcd read them. The caller calls sync when it has written its last
// line.
func (c *Config) NewLogger() (lg *zap.Logger, sync func(), err error) {
	level, err := zapcore.ParseLevel(c.LogLevel)
	if err != nil {
		return nil, nil, fmt.Errorf("log-level: %w", err)
	}
	encoding := zap.NewProductionEncoderConfig()
	encoding.EncodeTime = zapcore.TimeEncoderOfLayout("2006-01-02T15:04:05.000Z0700")
	encoding.EncodeDuration = zapcore.StringDurationEncoder
	var encoder zapcore.Encoder
	switch c.LogFormat {
	case "json":
		encoder = zapcore.NewJSONEncoder(withTimeKey(encoding))
	case "console":
		encoding.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(withTimeKey(encoding))
	default:
		return nil, nil, fmt.Errorf("log-format: unknown format %q", c.LogFormat)
	}
	paths := make([]string, len(c.LogOutputs))
	for i, output := range c.LogOutputs {
		switch output {
		case "default", "stderr":
			paths[i] = "stderr"
		case "stdout":
			paths[i] = "stdout"
		default:
			// zap takes an output for a URL if it can; an absolute path is never
			// one.
			if paths[i], err = filepath.Abs(output); err != nil {
				return nil, nil, fmt.Errorf("log-outputs: %w", err)
			}
			if err := os.MkdirAll(filepath.Dir(paths[i]), 0o700); err != nil {
				return nil, nil, fmt.Errorf("log-outputs: %w", err)
			}
		}
	}
	sink, closeSink, err := zap.Open(paths...)
	if err != nil {
		return nil, nil, fmt.Errorf("log-outputs: %w", err)
	}
	lg = zap.New(plainCore{zapcore.NewCore(encoder, sink, level)}, zap.AddCaller(), zap.ErrorOutput(sink))
	return lg, func() {
		_ = lg.Sync() // fails on terminals, which need none
		closeSink()
	}, nil
}

func withTimeKey(e zapcore.EncoderConfig) zapcore.EncoderConfig {
	e.TimeKey = "ts"
	return e
}

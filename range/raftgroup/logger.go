package raftgroup

import (
	"fmt"

	"go.etcd.io/raft/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// logger quiets raft: with thousands of groups its news are debugging matter.
// What it calls errors are warnings here, and its panics stay panics.
type logger struct {
	zap *zap.Logger
}

var _ raft.Logger = logger{}

func newLogger(z *zap.Logger, group, replica uint64) logger {
	if z.Core().Enabled(zapcore.WarnLevel) {
		z = z.With(zap.Uint64("group", group), zap.Uint64("replica", replica))
	}
	return logger{z}
}

func (l logger) log(level zapcore.Level, v []any) {
	if ce := l.zap.Check(level, "raft"); ce != nil {
		ce.Write(zap.String("says", fmt.Sprint(v...)))
	}
}

func (l logger) logf(level zapcore.Level, format string, v []any) {
	if ce := l.zap.Check(level, "raft"); ce != nil {
		ce.Write(zap.String("says", fmt.Sprintf(format, v...)))
	}
}

func (l logger) Debug(v ...any)                   { l.log(zapcore.DebugLevel, v) }
func (l logger) Debugf(format string, v ...any)   { l.logf(zapcore.DebugLevel, format, v) }
func (l logger) Info(v ...any)                    { l.log(zapcore.DebugLevel, v) }
func (l logger) Infof(format string, v ...any)    { l.logf(zapcore.DebugLevel, format, v) }
func (l logger) Warning(v ...any)                 { l.log(zapcore.DebugLevel, v) }
func (l logger) Warningf(format string, v ...any) { l.logf(zapcore.DebugLevel, format, v) }
func (l logger) Error(v ...any)                   { l.log(zapcore.WarnLevel, v) }
func (l logger) Errorf(format string, v ...any)   { l.logf(zapcore.WarnLevel, format, v) }

func (l logger) Fatal(v ...any)                 { panic("raft: " + fmt.Sprint(v...)) }
func (l logger) Fatalf(format string, v ...any) { panic("raft: " + fmt.Sprintf(format, v...)) }
func (l logger) Panic(v ...any)                 { panic("raft: " + fmt.Sprint(v...)) }
func (l logger) Panicf(format string, v ...any) { panic("raft: " + fmt.Sprintf(format, v...)) }

package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestDefaultsAreValidAndFilledOnce(t *testing.T) {
	var c Config
	c.EnsureDefaults()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	c.MaxTxnOps = 9
	c.EnsureDefaults()
	if c.MaxTxnOps != 9 {
		t.Fatal("EnsureDefaults replaced a value that was set")
	}
}

// A program that fills the struct itself gets the same checks as an operator.
func TestValidateChecksEveryFieldOfAStruct(t *testing.T) {
	for name, spoil := range map[string]func(*Config){
		"name":                           func(c *Config) { c.Name = "a=b" },
		"shards":                         func(c *Config) { c.Shards = -1 },
		"max-txn-ops":                    func(c *Config) { c.MaxTxnOps = -1 },
		"max-request-bytes":              func(c *Config) { c.MaxRequestBytes = 1 << 40 },
		"max-response-bytes":             func(c *Config) { c.MaxResponseBytes = 1 << 20 },
		"engine-cache-bytes":             func(c *Config) { c.EngineCacheBytes = 2*c.EngineMemTableBytes - 1 },
		"engine-memtable-bytes":          func(c *Config) { c.EngineMemTableBytes = 1 },
		"heartbeat-interval":             func(c *Config) { c.HeartbeatInterval = -time.Second },
		"election-timeout":               func(c *Config) { c.ElectionTimeout = time.Hour },
		"grpc-keepalive-interval":        func(c *Config) { c.GRPCKeepAliveInterval = -time.Minute },
		"auto-compaction-retention":      func(c *Config) { c.AutoCompactionWindow = -time.Hour },
		"auto-compaction-mode":           func(c *Config) { c.AutoCompactionMode = "x" },
		"log-level":                      func(c *Config) { c.LogLevel = "loud" },
		"metrics":                        func(c *Config) { c.Metrics = "none" },
		"listen-client-urls":             func(c *Config) { c.ListenClientURLs = nil },
		"watch-progress-notify-interval": func(c *Config) { c.WatchProgressNotifyInterval = 1 },
	} {
		var c Config
		c.EnsureDefaults()
		spoil(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "--"+name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSwitchedOffDurationsAreValid(t *testing.T) {
	c := Config{GRPCKeepAliveInterval: Disabled, GRPCKeepAliveTimeout: Disabled, CompactionSleepInterval: Disabled}
	c.EnsureDefaults()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	if interval, timeout := c.ServerKeepalive(); interval < 100*365*24*time.Hour || timeout != DefaultGRPCKeepAliveTimeout {
		t.Fatalf("a server would ping after %s and wait %s", interval, timeout)
	}
	if c.GRPCKeepAliveInterval != Disabled || c.CompactionSleepInterval != Disabled {
		t.Fatal("a default replaced Disabled")
	}
}

func TestLoggerWritesEtcdsKeysToEveryOutput(t *testing.T) {
	file := filepath.Join(t.TempDir(), "logs", "hawser.log")
	c := Config{LogOutputs: []string{file}, LogLevel: "warn"}
	c.EnsureDefaults()
	lg, sync, err := c.NewLogger()
	if err != nil {
		t.Fatal(err)
	}
	lg.Info("below the level")
	lg.Warn("seen")
	sync()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var line map[string]any
	if err := json.Unmarshal(content, &line); err != nil {
		t.Fatalf("%v in %q", err, content)
	}
	if line["level"] != "warn" || line["msg"] != "seen" || line["caller"] == nil {
		t.Fatalf("line %v", line)
	}
	if _, err := time.Parse("2006-01-02T15:04:05.000Z0700", line["ts"].(string)); err != nil {
		t.Fatal(err)
	}
}

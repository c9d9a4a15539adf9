package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// usage is what a process has used since its start, from /proc.
type usage struct {
	// cpu is user and system time, in steps of 10 ms.
	cpu time.Duration
	// rssBytes is the resident memory now, peakBytes the most since its start or the last resetPeak.
	rssBytes, peakBytes int64
	// writtenBytes is what the process had the kernel write to the disk.
	writtenBytes int64
}

// clockTicks is the unit of times in /proc, the same on all Linux systems.
const clockTicks = 100

func readUsage(pid int) (usage, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	var u usage
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return usage{}, err
	}
	if u.cpu, err = parseStat(stat); err != nil {
		return usage{}, err
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return usage{}, err
	}
	rss, err := parseField(status, "VmRSS")
	if err != nil {
		return usage{}, err
	}
	peak, err := parseField(status, "VmHWM")
	if err != nil {
		return usage{}, err
	}
	u.rssBytes, u.peakBytes = rss<<10, peak<<10
	io, err := os.ReadFile(filepath.Join(dir, "io"))
	if err != nil {
		return usage{}, err
	}
	u.writtenBytes, err = parseField(io, "write_bytes")
	return u, err
}

// parseStat returns utime and stime of a /proc/PID/stat.
func parseStat(stat []byte) (time.Duration, error) {
	// The second field is the command in parentheses and may hold anything.
	_, after, ok := bytes.Cut(stat[max(bytes.LastIndexByte(stat, ')'), 0):], []byte(") "))
	fields := strings.Fields(string(after))
	const utime, stime = 14 - 3, 15 - 3 // counted from 1, the first two are cut off
	if !ok || len(fields) <= stime {
		return 0, fmt.Errorf("stat of a process: %q", stat)
	}
	user, err := strconv.ParseInt(fields[utime], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("stat of a process: utime: %w", err)
	}
	system, err := strconv.ParseInt(fields[stime], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("stat of a process: stime: %w", err)
	}
	return time.Duration(user+system) * (time.Second / clockTicks), nil
}

// parseField returns the number of a "name: number [unit]" line.
func parseField(content []byte, name string) (int64, error) {
	for line := range strings.Lines(string(content)) {
		rest, ok := strings.CutPrefix(line, name+":")
		if !ok {
			continue
		}
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			break
		}
		return strconv.ParseInt(fields[0], 10, 64)
	}
	return 0, fmt.Errorf("no %s in a file of /proc", name)
}

// resetPeak makes peakBytes count from now.
func resetPeak(pid int) error {
	return os.WriteFile(filepath.Join("/proc", strconv.Itoa(pid), "clear_refs"), []byte("5"), 0)
}

// ownCPU is the CPU time of this process.
func ownCPU() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// machine describes where the figures were measured.
type machine struct {
	CPU, Kernel, FileSystem, Go string
	Cores                       int
	MemoryGiB                   float64
	// SyncMillis is the median time of one 4 KiB write with fdatasync.
	SyncMillis float64
	// Load is the load average at the start: other work on the machine.
	Load string
}

// fileSystems names those that are likely; from linux/magic.h.
var fileSystems = map[int64]string{
	0xef53: "ext4", 0x58465342: "xfs", 0x9123683e: "btrfs", 0x794c7630: "overlay", 0x2fc12fc1: "zfs",
	0x01021994: "tmpfs", 0x858458f6: "ramfs",
}

// describeMachine also refuses a dir that is in memory: there a sync costs nothing.
func describeMachine(dir, goVersion string, cores int) (machine, error) {
	m := machine{Go: goVersion, Cores: cores}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return machine{}, fmt.Errorf("file system of %s: %w", dir, err)
	}
	m.FileSystem = fileSystems[int64(fs.Type)]
	switch m.FileSystem {
	case "tmpfs", "ramfs":
		return machine{}, fmt.Errorf("%s is on a %s: a disk is measured here", dir, m.FileSystem)
	case "":
		m.FileSystem = fmt.Sprintf("%#x", fs.Type)
	}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	if info, err := os.ReadFile("/proc/meminfo"); err == nil {
		if kib, err := parseField(info, "MemTotal"); err == nil {
			m.MemoryGiB = float64(kib) / (1 << 20)
		}
	}
	if v, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(v))
	}
	if v, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load = strings.Join(strings.Fields(string(v))[:3], " ")
	}
	d, err := syncTime(dir)
	if err != nil {
		return machine{}, err
	}
	m.SyncMillis = float64(d) / float64(time.Millisecond)
	return m, nil
}

// syncTime returns the median time of a small synced append in dir.
func syncTime(dir string) (time.Duration, error) {
	f, err := os.CreateTemp(dir, "sync")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	block := make([]byte, 4<<10)
	var times []time.Duration
	for range 200 {
		start := time.Now()
		if _, err := f.Write(block); err != nil {
			return 0, err
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			return 0, err
		}
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

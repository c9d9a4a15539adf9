package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/record"
)

// checkManifest refuses an engine whose manifest is damaged. The engine takes a
// record that it cannot read for the end of the manifest, for so a crash leaves
// it: it would go on with the tables of long ago and without the logs that were
// dropped since. What a crash leaves is cut off; it is damage if a good record
// follows, or if the bad one is there to its last byte. It returns whether there is
// a manifest, and what it says of the logs.
func (d *dataDir) checkManifest() (exists bool, firstLog uint64, err error) {
	if _, err := d.fs.Stat(d.enginePath()); errors.Is(err, os.ErrNotExist) {
		return false, 0, nil
	}
	desc, err := pebble.Peek(d.enginePath(), d.fs)
	switch {
	case err != nil:
		return false, 0, explain(d.path, "open the engine", err)
	case !desc.Exists:
		return false, 0, nil
	}
	f, err := d.fs.Open(desc.ManifestFilename)
	if errors.Is(err, os.ErrNotExist) {
		return false, 0, fmt.Errorf("%s: the manifest %s is missing: %w", d.path, d.fs.PathBase(desc.ManifestFilename), ErrDamaged)
	}
	if err != nil {
		return false, 0, explain(d.path, "open the engine", err)
	}
	defer func() { _ = f.Close() }() // read only
	records, good := record.NewReader(f, 0), int64(0)
	for {
		var edit []byte
		r, err := records.Next()
		if err == nil {
			edit, err = io.ReadAll(r)
		}
		if errors.Is(err, io.EOF) {
			return d.wholeManifest(desc.ManifestFilename, good, firstLog)
		}
		if err != nil {
			break // here a crash has cut it off, or it is damaged
		}
		good = records.Offset()
		firstLog = max(firstLog, firstLogOf(edit))
	}
	rest, err := io.ReadAll(io.NewSectionReader(f, good, maxSearchBytes))
	if err != nil {
		return false, 0, fmt.Errorf("%s: read the manifest: %w", d.path, err)
	}
	if !cutOff(rest) {
		return false, 0, fmt.Errorf("%s: the manifest %s is unreadable behind byte %d: %w", d.path, d.fs.PathBase(desc.ManifestFilename), good, ErrDamaged)
	}
	return d.wholeManifest(desc.ManifestFilename, good, firstLog)
}

// wholeManifest refuses a manifest without a record: the engine has its first one
// before it says which manifest is its own.
func (d *dataDir) wholeManifest(name string, good int64, firstLog uint64) (bool, uint64, error) {
	if good == 0 {
		return false, 0, fmt.Errorf("%s: the manifest %s has nothing in it: %w", d.path, d.fs.PathBase(name), ErrDamaged)
	}
	return true, firstLog, nil
}

// firstLogOf returns the number of the first log that is still needed once a record
// of the manifest is written, 0 if the record does not say. A record is a list of
// numbers and what belongs to each; this one comes first, or after the comparer's name.
func firstLogOf(edit []byte) uint64 {
	const comparer, firstLog = 1, 2
	tag, n := binary.Uvarint(edit)
	if n > 0 && tag == comparer {
		length, m := binary.Uvarint(edit[n:])
		if m <= 0 || length > uint64(len(edit)-n-m) {
			return 0
		}
		edit = edit[n+m+int(length):]
		tag, n = binary.Uvarint(edit)
	}
	if n <= 0 || tag != firstLog {
		return 0
	}
	number, n := binary.Uvarint(edit[n:])
	if n <= 0 {
		return 0
	}
	return number
}

// maxSearchBytes bounds how far behind an unreadable record others are looked
// for: some hundred records.
const maxSearchBytes = 1 << 20

// cutOff reports whether b, which begins with a record that cannot be read, is
// what a crash leaves of records that were written one after the other.
func cutOff(b []byte) bool {
	if len(b) > chunkHeader {
		for kind := range byte(4) {
			// Good but for its length or type, which the checksum would know.
			if masked(append([]byte{kind + 1}, b[chunkHeader:]...)) == binary.LittleEndian.Uint32(b) {
				return false
			}
		}
	}
	for i := range b {
		end, whole := chunk(b[i:])
		if whole {
			return false
		}
		if i == 0 && end == len(b) && b[len(b)-1] != 0 {
			return false
		}
	}
	return true
}

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
// follows, or if the bad one is there to its last byte.
func (d *dataDir) checkManifest() error {
	if _, err := d.fs.Stat(d.enginePath()); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	desc, err := pebble.Peek(d.enginePath(), d.fs)
	switch {
	case err != nil:
		return explain(d.path, "open the engine", err)
	case !desc.Exists:
		return nil
	}
	f, err := d.fs.Open(desc.ManifestFilename)
	if err != nil {
		return explain(d.path, "open the engine", err)
	}
	defer func() { _ = f.Close() }() // read only
	records, good := record.NewReader(f, 0), int64(0)
	for {
		r, err := records.Next()
		if err == nil {
			_, err = io.Copy(io.Discard, r)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			break // here a crash has cut it off, or it is damaged
		}
		good = records.Offset()
	}
	rest, err := io.ReadAll(io.NewSectionReader(f, good, maxSearchBytes))
	if err != nil {
		return fmt.Errorf("%s: read the manifest: %w", d.path, err)
	}
	if !cutOff(rest) {
		return fmt.Errorf("%s: the manifest %s is unreadable behind byte %d: %w", d.path, d.fs.PathBase(desc.ManifestFilename), good, ErrDamaged)
	}
	return nil
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

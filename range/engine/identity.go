package engine

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-kv/hawser/range/keys"
)

// dataFormat is the version of the layout of a data directory. A server
// refuses one that is newer than its own. Format 1 did not say whether there are
// notes of what is synced.
const dataFormat = 2

// Identity says whose a data directory is.
type Identity struct {
	Format    int    `json:"format"`
	ClusterID uint64 `json:"cluster_id,string"`
	NodeID    uint64 `json:"node_id,string"`
	// Notes: the file SYNCED has been written beside the engine's files. Without it
	// the directory is not whole. Only the directory's own identity file says so,
	// not the engine's.
	Notes bool `json:"notes,omitempty"`
	// Checksum is the CRC32C of the fields above, against a damaged file.
	Checksum uint32 `json:"checksum"`
}

func (id Identity) sum() uint32 {
	b := make([]byte, 0, 21)
	b = binary.BigEndian.AppendUint32(b, uint32(id.Format))
	b = binary.BigEndian.AppendUint64(b, id.ClusterID)
	b = binary.BigEndian.AppendUint64(b, id.NodeID)
	if id.Format > 1 {
		var notes byte
		if id.Notes {
			notes = 1
		}
		b = append(b, notes)
	}
	return crc32.Checksum(b, castagnoli)
}

// sealed returns the identity in the present format.
func (id Identity) sealed() Identity {
	id.Format = dataFormat
	id.Checksum = id.sum()
	return id
}

// readIdentity reads the identity file of a directory. Errors: the sentinels
// above; one that wraps os.ErrNotExist if there is none.
func readIdentity(fs vfs.FS, dir string) (Identity, error) {
	var id Identity
	f, err := fs.Open(fs.PathJoin(dir, identityFile))
	if err != nil {
		return id, fmt.Errorf("%s: %w", dir, err)
	}
	defer func() { _ = f.Close() }() // read only
	b, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return id, fmt.Errorf("%s: read %s: %w", dir, identityFile, err)
	}
	// The format comes first: a newer one may look different.
	if err := json.Unmarshal(b, &struct {
		Format *int `json:"format"`
	}{&id.Format}); err != nil || id.Format < 1 {
		return id, fmt.Errorf("%s: the file %s cannot be read: %w", dir, identityFile, ErrDamaged)
	}
	if id.Format > dataFormat {
		return id, fmt.Errorf("%s: format %d, this release knows %d: %w", dir, id.Format, dataFormat, ErrNewerFormat)
	}
	if err := json.Unmarshal(b, &id); err != nil || id.Checksum != id.sum() {
		return id, fmt.Errorf("%s: the file %s cannot be read: %w", dir, identityFile, ErrDamaged)
	}
	return id, nil
}

// writeIdentity makes the identity file of a directory, durably.
func writeIdentity(fs vfs.FS, dir string, id Identity) error {
	b, err := json.Marshal(id)
	if err != nil {
		return err
	}
	return replaceFile(fs, dir, identityFile, append(b, '\n'))
}

// replaceFile makes a file, or puts another in its place, durably: a crash leaves
// the one or the other.
func replaceFile(fs vfs.FS, dir, base string, content []byte) error {
	name := fs.PathJoin(dir, base)
	f, err := fs.Create(name+".tmp", vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = fs.Rename(name+".tmp", name)
	}
	if err == nil {
		err = syncDir(fs, dir)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return nil
}

// syncDir makes the names in a directory durable.
func syncDir(fs vfs.FS, dir string) error {
	opened, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(opened.Sync(), opened.Close())
}

// keepsNotes says durably that the notes of what is synced, which are there now, must
// be there from now on.
func (d *dataDir) keepsNotes() error {
	if d.id.Notes {
		return nil
	}
	id := d.id
	id.Notes = true
	if err := writeIdentity(d.fs, d.path, id.sealed()); err != nil {
		return err
	}
	d.id = id.sealed()
	return nil
}

// checkEngineFile compares the identity file beside the engine's files with the
// directory's: opening an engine changes it, and one of another cluster is not
// ours to change. Without the file the row in the engine decides.
func (d *dataDir) checkEngineFile() error {
	id, err := readIdentity(d.fs, d.enginePath())
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return d.checkSame(id)
}

// checkEngine compares the engine's own note of whose it is with the
// directory's, writing it into a new engine.
func (d *dataDir) checkEngine(db *pebble.DB) error {
	if err := d.checkEngineRow(db); err != nil {
		return err
	}
	if _, err := d.fs.Stat(d.fs.PathJoin(d.enginePath(), identityFile)); err == nil {
		return nil
	}
	return writeIdentity(d.fs, d.enginePath(), d.engineID())
}

// engineID is what the engine's own notes of whose it is say.
func (d *dataDir) engineID() Identity {
	return Identity{ClusterID: d.id.ClusterID, NodeID: d.id.NodeID}.sealed()
}

func (d *dataDir) checkEngineRow(db *pebble.DB) error {
	key := keys.Node("identity")
	v, closer, err := db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		b, err := json.Marshal(d.engineID())
		if err != nil {
			return err
		}
		if err := db.Set(key, b, pebble.Sync); err != nil {
			return err
		}
		// The first log of a new engine was begun in an old format, in which a
		// damaged record cannot be told from the log's end. Flush begins another.
		return db.Flush()
	}
	if err != nil {
		return fmt.Errorf("engine identity: %w: %w", ErrDamaged, err)
	}
	var id Identity
	err = json.Unmarshal(v, &id)
	if err := errors.Join(err, closer.Close()); err != nil {
		return fmt.Errorf("engine identity: %w: %w", ErrDamaged, err)
	}
	return d.checkSame(id)
}

// checkSame compares an identity found in the engine with the directory's.
func (d *dataDir) checkSame(id Identity) error {
	if id.ClusterID != d.id.ClusterID || id.NodeID != d.id.NodeID {
		return fmt.Errorf("the engine is of cluster %x node %x, the file %s of cluster %x node %x: %w",
			id.ClusterID, id.NodeID, identityFile, d.id.ClusterID, d.id.NodeID, ErrOtherCluster)
	}
	return nil
}

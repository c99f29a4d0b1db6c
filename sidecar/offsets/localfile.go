package offsets

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// The file: bucket "meta" holds "format"; bucket "positions" holds a bucket for
// each group, in it "<topic>\x00<partition, 4 bytes big-endian>" with the whole
// position as JSON.
var (
	bucketMeta      = []byte("meta")
	bucketPositions = []byte("positions")
	keyFormat       = []byte("format")
)

// localFormat is the version of the layout above.
const localFormat = "1"

// lockWait is how long another process may hold the file: a sidecar that is
// ending still has it for a moment.
const lockWait = 2 * time.Second

// openFile opens the file and reads all of it once; one that cannot be read is
// moved aside and a fresh one opened.
func openFile(path string) (db *bolt.DB, file *os.File, aside string, err error) {
	db, file, err = openSound(path)
	if err == nil {
		return db, file, "", nil
	}
	var bad *unreadable
	if !errors.As(err, &bad) {
		return nil, nil, "", err
	}
	aside = fmt.Sprintf("%s.bad-%s", path, time.Now().UTC().Format("20060102T150405.000Z"))
	if err := os.Rename(path, aside); err != nil {
		return nil, nil, "", fmt.Errorf("the local store is unreadable (%w) and cannot be set aside: %w", bad, err)
	}
	if db, file, err = openSound(path); err != nil {
		return nil, nil, "", err
	}
	return db, file, aside, nil
}

// unreadable means that the file is there and is not one of ours, or damaged.
type unreadable struct{ err error }

func (e *unreadable) Error() string { return e.err.Error() }
func (e *unreadable) Unwrap() error { return e.err }

// openSound opens the file and reads every position in it. Damage can show as
// an error, as a panic of bbolt, or as a fault in its memory map: all come back
// as unreadable.
func openSound(path string) (db *bolt.DB, file *os.File, err error) {
	// The list of free pages is kept in the file: without it bbolt would scan
	// the file at each opening in a goroutine of its own, where damage ends the
	// process.
	opt := &bolt.Options{Timeout: lockWait, FreelistType: bolt.FreelistMapType, OpenFile: func(name string, flag int, perm os.FileMode) (*os.File, error) {
		f, err := os.OpenFile(name, flag, perm)
		file = f
		return f, err
	}}
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if r := recover(); r != nil {
			err = &unreadable{fmt.Errorf("the local store %s is damaged: %v", path, r)}
		}
		if err != nil && db != nil {
			_ = db.Close()
			db = nil
		}
	}()
	db, err = bolt.Open(path, 0o600, opt)
	var system *fs.PathError
	switch {
	case err == nil:
	case errors.Is(err, berrors.ErrTimeout):
		return nil, nil, fmt.Errorf("the local store %s is open in another process: give each sidecar a data folder of its own", path)
	case errors.As(err, &system) || errors.Is(err, fs.ErrPermission):
		return nil, nil, fmt.Errorf("opening the local store: %w", err)
	default:
		return nil, nil, &unreadable{fmt.Errorf("the local store %s: %w", path, err)}
	}
	if err := db.Update(prepare); err != nil {
		return db, file, err
	}
	if err := db.View(readAll); err != nil {
		return db, file, &unreadable{fmt.Errorf("the local store %s: %w", path, err)}
	}
	return db, file, syncDir(filepath.Dir(path))
}

// prepare makes the buckets of a fresh file and checks the format of another.
func prepare(tx *bolt.Tx) error {
	meta, err := tx.CreateBucketIfNotExists(bucketMeta)
	if err != nil {
		return fmt.Errorf("preparing the local store: %w", err)
	}
	switch format := meta.Get(keyFormat); {
	case format == nil:
		if err := meta.Put(keyFormat, []byte(localFormat)); err != nil {
			return fmt.Errorf("preparing the local store: %w", err)
		}
	case string(format) != localFormat:
		return &unreadable{fmt.Errorf("its format is %q, this program reads %q", format, localFormat)}
	}
	if _, err := tx.CreateBucketIfNotExists(bucketPositions); err != nil {
		return fmt.Errorf("preparing the local store: %w", err)
	}
	return nil
}

func readAll(tx *bolt.Tx) error {
	positions := tx.Bucket(bucketPositions)
	return positions.ForEachBucket(func(group []byte) error {
		return positions.Bucket(group).ForEach(func(k, v []byte) error {
			if _, err := Decode(v); err != nil {
				return fmt.Errorf("group %s, key %q: %w", group, k, err)
			}
			return nil
		})
	})
}

func partitionKey(topic string, partition int32) []byte {
	return binary.BigEndian.AppendUint32(append([]byte(topic), 0), uint32(partition))
}

func get(tx *bolt.Tx, key Key) (Position, bool, error) {
	group := tx.Bucket(bucketPositions).Bucket([]byte(key.Group))
	if group == nil {
		return Position{}, false, nil
	}
	v := group.Get(partitionKey(key.Topic, key.Partition))
	if v == nil {
		return Position{}, false, nil
	}
	p, err := Decode(v)
	return p, err == nil, err
}

func all(tx *bolt.Tx, group, topic string, out map[int32]Position) error {
	b := tx.Bucket(bucketPositions).Bucket([]byte(group))
	if b == nil {
		return nil
	}
	prefix := append([]byte(topic), 0)
	c := b.Cursor()
	for k, v := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, v = c.Next() {
		p, err := Decode(v)
		if err != nil {
			return err
		}
		out[int32(binary.BigEndian.Uint32(k[len(prefix):]))] = p
	}
	return nil
}

func put(tx *bolt.Tx, key Key, p Position) error {
	group, err := tx.Bucket(bucketPositions).CreateBucketIfNotExists([]byte(key.Group))
	if err != nil {
		return err
	}
	return group.Put(partitionKey(key.Topic, key.Partition), p.EncodeAll())
}

func deleteGroup(tx *bolt.Tx, group string) error {
	err := tx.Bucket(bucketPositions).DeleteBucket([]byte(group))
	if errors.Is(err, berrors.ErrBucketNotFound) {
		return nil
	}
	return err
}

// syncDir makes the file's name durable: the file's own sync does not.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

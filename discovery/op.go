package discovery

// Verb is what an operation of a commit does.
type Verb int

const (
	VerbSet          Verb = iota // write, whatever is there
	VerbCAS                      // write if the key's version is Version (0: absent)
	VerbDelete                   // delete, present or not
	VerbDeleteCAS                // delete if the key's version is Version
	VerbDeletePrefix             // delete every key under Key
	VerbAcquire                  // write and lock with Session; conflict when another holds it
	VerbRelease                  // unlock; conflict when Session does not hold it. The key stays.
	VerbHeld                     // check: Session holds the key
	VerbUnchanged                // check: the key's version is Version
	VerbAbsent                   // check: the key has no value
)

// Op is one operation of a commit, made by the functions below.
type Op struct {
	Verb    Verb
	Key     string
	Value   []byte
	Version uint64
	Session string
}

// Set writes a key whatever is there, and leaves its lock as it is.
func Set(key string, value []byte) Op { return Op{Verb: VerbSet, Key: key, Value: value} }

// CAS writes a key if its version is still version; 0 means that it must be absent.
func CAS(key string, value []byte, version uint64) Op {
	return Op{Verb: VerbCAS, Key: key, Value: value, Version: version}
}

// Create writes a key that must be absent.
func Create(key string, value []byte) Op { return CAS(key, value, 0) }

// Delete removes a key, present or not.
func Delete(key string) Op { return Op{Verb: VerbDelete, Key: key} }

// DeleteCAS removes a key if its version is still version. A key that is gone
// already counts as removed.
func DeleteCAS(key string, version uint64) Op {
	return Op{Verb: VerbDeleteCAS, Key: key, Version: version}
}

// DeletePrefix removes every key under prefix.
func DeletePrefix(prefix string) Op { return Op{Verb: VerbDeletePrefix, Key: prefix} }

// Acquire writes a key and locks it with the session; the key is deleted when
// the session ends. Acquiring again by the holder only writes the value.
func Acquire(key string, value []byte, session string) Op {
	return Op{Verb: VerbAcquire, Key: key, Value: value, Session: session}
}

// Release unlocks a key that the session holds and leaves it; to hand a lock
// over put Held and Delete in one commit instead.
func Release(key, session string) Op { return Op{Verb: VerbRelease, Key: key, Session: session} }

// Held checks that the session holds the key.
func Held(key, session string) Op { return Op{Verb: VerbHeld, Key: key, Session: session} }

// Unchanged checks that the key's version is still version.
func Unchanged(key string, version uint64) Op {
	return Op{Verb: VerbUnchanged, Key: key, Version: version}
}

// Absent checks that the key has no value.
func Absent(key string) Op { return Op{Verb: VerbAbsent, Key: key} }

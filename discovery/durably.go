package discovery

// WriteFileDurably replaces a small file so that a crash leaves the old or the
// new contents, and the new ones once it has returned without error.
func WriteFileDurably(path string, b []byte) error { return writeFileDurably(path, b) }

package compat

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// errMissing says that a program which a client needs is not on this machine.
// Tests skip then, with its text.
var errMissing = errors.New("not on this machine")

// cacheDir is where what was downloaded is kept, out of git's sight.
const cacheDir = "../../.cache/compat"

// cached returns a folder that build has filled once for this key. Another key
// (a new version) gets another folder. build is given a temporary one, which
// takes its place only when it is complete, so that an interrupted download is
// not mistaken for a whole one.
func cached(name, key string, build func(dir string) error) (string, error) {
	root, err := filepath.Abs(cacheDir)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, fmt.Sprintf("%s-%.4x", name, sha256.Sum256([]byte(key))))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", err
	}
	temporary, err := os.MkdirTemp(root, name+"-unfinished-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(temporary) }()
	if err := build(temporary); err != nil {
		return "", err
	}
	if err := os.Chmod(temporary, 0o755); err != nil {
		return "", err
	}
	if err := os.Rename(temporary, dir); err != nil {
		if _, there := os.Stat(dir); there == nil { // another run was quicker
			return dir, nil
		}
		return "", err
	}
	return dir, nil
}

// download runs a package manager, twice if need be: registries have bad moments.
func download(ctx context.Context, name string, args ...string) error {
	var last error
	for range 2 {
		if _, last = run(ctx, "", name, args...); last == nil || ctx.Err() != nil {
			return last
		}
	}
	return last
}

// need finds programs on the PATH.
func need(programs ...string) error {
	var missing []string
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			missing = append(missing, p)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s: %w", strings.Join(missing, ", "), errMissing)
	}
	return nil
}

package sidecar

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"sidestream/discovery"
)

// errCopy: another process lives with the identity of our data folder.
var errCopy = errors.New("is data_dir a copy of another running sidecar's?")

// rivalPause is the time between two looks whether the other one is gone.
const rivalPause = 5 * time.Second

// refuseCopy returns errCopy while the key is held by another process with our
// data folder's identity. At our start that is our earlier life, from which we
// take over; one that came later has a copy of the folder, since the folder
// itself is locked. To take the key back would have the two end each other's
// session for ever, and no group would get on with either of them.
func (p *presence) refuseCopy(ctx context.Context) error {
	p.mu.Lock()
	held, before := p.held, p.rival
	p.mu.Unlock()
	if !held {
		return nil
	}
	e, err := p.store.Get(ctx, discovery.KeySidecar(p.id))
	if err != nil && !errors.Is(err, discovery.ErrNotFound) {
		return fmt.Errorf("looking who has our id: %w", err)
	}
	rival := ""
	if err == nil {
		rival = p.rivalIn(e)
	}
	p.mu.Lock()
	p.rival = rival
	p.mu.Unlock()
	switch {
	case rival != "" && before == "":
		p.log.Error("another process took our place in the coordination store: publishing goes on, groups do not", zap.String("cause", rival))
	case rival == "" && before != "":
		p.log.Info("the other process with our identity is gone")
	}
	if rival != "" {
		return errCopy
	}
	return nil
}

// rivalIn says who holds our key with our data folder's identity and is not this
// process; "" when that is nobody.
func (p *presence) rivalIn(e discovery.Entry) string {
	other, err := discovery.Decode[discovery.Sidecar](e)
	if err != nil || e.Session == "" || other.Nonce != p.nonce || other.Process == p.process {
		return "" // the claim judges the rest
	}
	return fmt.Sprintf("data_dir: %s Sidecar %q also runs at %s, with the identity of this data_dir: one of the two folders is a copy; stop one process, and remove identity.json from the copy if both are to run", errCopy, p.id, other.Address)
}

package discovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// ErrIDTaken: another data folder's process holds the id.
var ErrIDTaken = errors.New("discovery: the id is taken")

// claimTries bounds the rounds of one claim: each lost round means that
// somebody else wrote the key in between.
const claimTries = 10

// ClaimID takes an ephemeral id key ([KeyBroker], [KeySidecar], …) with the
// session. The value is JSON whose "nonce" field is that of the data folder,
// as in [Broker] and [Sidecar]. A key that is held with our own nonce is our
// earlier life: its session is destroyed and the key taken at once. One that
// is held with another nonce gives [ErrIDTaken]. Other errors are those of
// [Store.Commit]; after ErrUnavailable claim again.
func ClaimID(ctx context.Context, store Store, session Session, key string, value []byte, nonce string) error {
	var err error
	for range claimTries {
		_, err = store.Commit(ctx, Acquire(key, value, session.ID()))
		if err == nil {
			return nil
		}
		if !errors.Is(err, ErrConflict) && !errors.Is(err, ErrUnknownOutcome) {
			return err
		}
		held, getErr := store.Get(ctx, key)
		switch {
		case errors.Is(getErr, ErrNotFound):
			continue // it went away meanwhile
		case getErr != nil:
			return getErr
		case held.Session == "" || held.Session == session.ID():
			continue // acquiring again by the holder writes the value
		}
		var holder struct {
			Nonce string `json:"nonce"`
		}
		if jsonErr := json.Unmarshal(held.Value, &holder); jsonErr != nil || holder.Nonce != nonce {
			return fmt.Errorf("%w: key %q is held by another data folder (session %s): if this folder is a copy, "+
				"remove its %s or choose another id; if the other process is gone for good, its session ends by itself within half a minute",
				ErrIDTaken, key, held.Session, identityFile)
		}
		if err := store.DestroySession(ctx, held.Session); err != nil {
			return err
		}
		// The store may refuse the lock for the delay of the session destroyed.
		if err := sleep(ctx, 2*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("key %q changed hands all the time: %w", key, err)
}

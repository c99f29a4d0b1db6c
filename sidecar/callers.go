package sidecar

import (
	"fmt"
	"maps"
	"os/user"
	"slices"
	"strconv"

	"go.uber.org/zap"

	"sidestream/sidecar/api"
)

func (c Config) checkCallers() error {
	for _, name := range slices.Sorted(maps.Keys(c.Callers)) {
		if caller := c.Callers[name]; !api.IsCaller(caller) {
			return fmt.Errorf("callers.%s: got %q: use a name of 1 to 128 of a-z A-Z 0-9 . _ -", name, caller)
		}
	}
	return nil
}

// users are the callers by the number of their user. A user that this host does
// not have is no error, since one configuration may serve many hosts.
func (c Config) users(log *zap.Logger) map[uint32]string {
	byNumber := make(map[uint32]string, len(c.Callers))
	for name, caller := range c.Callers {
		number := name
		if u, err := user.Lookup(name); err == nil {
			number = u.Uid
		}
		uid, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			log.Warn("callers: this host has no such user", zap.String("user", name))
			continue
		}
		byNumber[uint32(uid)] = caller
	}
	return byNumber
}

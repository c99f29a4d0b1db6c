//go:build !linux

package discovery

import "errors"

func exchange(_, _ string) error { return errors.ErrUnsupported }

// Command sidestream is the one binary: the agent with the broker inside, the
// sidecar, both together for development, and the tools around them. There is
// one file a command.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"sidestream/agent"
	"sidestream/sidecar"
)

// Exit codes.
const (
	exitOK     = 0 // done, or stopped as asked
	exitFailed = 1 // the work failed
	exitUsage  = 2 // wrong arguments or configuration: nothing was done
	// Of "sidestream status":
	exitDegraded = 3 // something is wrong
	exitNobody   = 4 // nobody answers
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	go func() {
		<-ctx.Done()
		stop() // a second signal ends the process at once
	}()
	agent.Version, sidecar.Version = versionText(), versionText()
	root := newRoot()
	root.SetArgs(os.Args[1:])
	err := root.ExecuteContext(ctx)
	if err != nil && message(err) != "" {
		_, _ = fmt.Fprintln(os.Stderr, "sidestream:", message(err))
	}
	os.Exit(exitCode(err))
}

// usageError marks an error of the command line or the configuration.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// exitError is an exit code of which everything was said already.
type exitError int

func (exitError) Error() string { return "" }

func exitCode(err error) int {
	if code, ok := errors.AsType[exitError](err); ok {
		return int(code)
	}
	switch _, usage := errors.AsType[usageError](err); {
	case err == nil:
		return exitOK
	case usage:
		return exitUsage
	}
	return exitFailed
}

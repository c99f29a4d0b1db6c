// Command publish measures publishing over HTTP through a sidecar: single posts
// beside a bare handler of the same HTTP server, which is the ceiling, and
// beside NATS JetStream's synchronous publish, and batches of lines and of
// NDJSON. Broker and sidecar are processes of their own, as are the bare handler
// and the JetStream servers, and one load program measures them in turns on the
// same processors, so that what the machine does besides meets them alike.
// Ratios within one run are what counts; figures of different runs do not
// compare.
//
// It ends with a line for each figure that has a target and exits with 0
// whenever it could measure, short of a target or not.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"
)

// options are what the user may choose.
type options struct {
	dir     string
	out     string
	profile string
	only    *regexp.Regexp
	theirs  bool
	rounds  int
	window  time.Duration
	touch   int64
}

func main() {
	if len(os.Args) > 2 && os.Args[1] == "role" {
		if err := runRole(os.Args[2], os.Args[3:]); err != nil {
			fmt.Fprintf(os.Stderr, "bench-publish %s: %v\n", os.Args[2], err)
			os.Exit(1)
		}
		return
	}
	o, err := parseFlags()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-publish:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench-publish:", err)
		os.Exit(1)
	}
}

func parseFlags() (options, error) {
	o := options{touch: 2 << 30}
	var only string
	var quick bool
	flag.StringVar(&o.dir, "dir", ".cache/bench-publish", "folder for all data, on the disk to be measured; emptied at first")
	flag.StringVar(&o.out, "out", "", "file for the table, besides standard output")
	flag.StringVar(&o.profile, "profile", "", "folder for CPU profiles of each measurement of our broker and sidecar")
	flag.StringVar(&only, "only", "", "regular expression: measure only these steps")
	flag.BoolVar(&o.theirs, "jetstream", true, "measure NATS JetStream too")
	flag.IntVar(&o.rounds, "rounds", 5, "measurements of each step and server, 1 or more")
	flag.DurationVar(&o.window, "window", 4*time.Second, "how long each measurement lasts")
	flag.BoolVar(&quick, "quick", false, "a look in a minute: one short round")
	flag.Parse()
	if quick {
		o.rounds, o.window, o.touch = 1, time.Second, 256<<20
	}
	if o.rounds < 1 || o.window <= 0 {
		return o, errors.New("rounds must be 1 or more, window a positive duration such as 4s")
	}
	var err error
	o.only, err = regexp.Compile(only)
	return o, err
}

// runRole is this program as one of the servers.
func runRole(name string, args []string) error {
	roles := map[string]func([]string) error{"agent": agentRole, "sidecar": sidecarRole, "bare": bareRole, "jetstream": jetstreamRole}
	role := roles[name]
	if role == nil {
		return fmt.Errorf("no such role")
	}
	return role(args)
}

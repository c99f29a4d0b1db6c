// Command consume measures pulling through a sidecar beside NATS JetStream:
// batches of messages, each acknowledged explicitly, from a log on disk. Broker
// and sidecar are processes of their own, as is the JetStream server, and one
// load program measures them in turns, so that what the machine does besides
// meets them alike. Ratios within one run are what counts; figures of different
// runs do not compare.
//
// It measures also what a thousand waiting pulls cost while nothing comes, and
// how soon a message is with one of them.
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
	bytes   int64 // of payload to be read in a measurement
	most    int64 // messages of it at most
	touch   int64
	waiters int
	rate    int
	quiet   time.Duration
	window  time.Duration
}

func main() {
	if len(os.Args) > 2 && os.Args[1] == "role" {
		if err := runRole(os.Args[2], os.Args[3:]); err != nil {
			fmt.Fprintf(os.Stderr, "bench-consume %s: %v\n", os.Args[2], err)
			os.Exit(1)
		}
		return
	}
	o, err := parseFlags()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-consume:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench-consume:", err)
		os.Exit(1)
	}
}

func parseFlags() (options, error) {
	o := options{bytes: 1 << 30, touch: 2 << 30}
	var only string
	var quick bool
	flag.StringVar(&o.dir, "dir", ".cache/bench-consume", "folder for all data, on the disk to be measured; emptied at first")
	flag.StringVar(&o.out, "out", "", "file for the table, besides standard output")
	flag.StringVar(&o.profile, "profile", "", "folder for CPU profiles of each measurement of our broker and sidecar")
	flag.StringVar(&only, "only", "", "regular expression: measure only these steps")
	flag.BoolVar(&o.theirs, "jetstream", true, "measure NATS JetStream too")
	flag.Int64Var(&o.most, "messages", 1_000_000, "messages read in a measurement, at most 1 GiB of them")
	flag.IntVar(&o.rounds, "rounds", 5, "measurements of each step and server, 1 or more")
	flag.IntVar(&o.waiters, "waiters", 1000, "pulls that wait at once, 1 or more")
	flag.IntVar(&o.rate, "rate", 1000, "messages a second that are published to waiting pulls, 1 or more")
	flag.DurationVar(&o.quiet, "quiet", 5*time.Second, "how long the waiting pulls are measured at rest")
	flag.DurationVar(&o.window, "window", 5*time.Second, "how long messages come to the waiting pulls")
	flag.BoolVar(&quick, "quick", false, "a look in a minute: one short round of little data")
	flag.Parse()
	if quick {
		o.rounds, o.bytes, o.most, o.touch = 1, 32<<20, 50_000, 256<<20
		o.quiet, o.window = 2*time.Second, 2*time.Second
	}
	if o.rounds < 1 || o.most < 1 || o.waiters < 1 || o.rate < 1 || o.quiet <= 0 || o.window <= 0 {
		return o, errors.New("rounds, messages, waiters and rate must be 1 or more, quiet and window positive durations such as 10s")
	}
	var err error
	o.only, err = regexp.Compile(only)
	return o, err
}

// runRole is this program as one of the servers.
func runRole(name string, args []string) error {
	roles := map[string]func([]string) error{"agent": agentRole, "sidecar": sidecarRole, "jetstream": jetstreamRole}
	role := roles[name]
	if role == nil {
		return fmt.Errorf("no such role")
	}
	return role(args)
}

// Command broker measures the broker beside its peers: Apache Kafka, and three
// bare loops that do the least a broker can do (take batches and write them;
// send a file; write and sync). All are processes of their own on one disk,
// measured in turns by one load program, so that what the machine does besides
// meets all of them alike. Ratios within one run are what counts; figures of
// different runs do not compare.
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
	cache   string
	out     string
	profile string
	only    *regexp.Regexp
	kafka   bool
	starts  []string // whose starts are measured
	rounds  int
	window  time.Duration // of one measurement
	warm    time.Duration // of one measurement that is thrown away
	fill    int64         // bytes that consumers read
	tail    int64         // bytes behind the recovery points at the crash start
	touch   int64         // bytes of page cache made warm at first
}

func main() {
	if len(os.Args) > 2 && os.Args[1] == "role" {
		if err := runRole(os.Args[2], os.Args[3:]); err != nil {
			fmt.Fprintf(os.Stderr, "bench-broker %s: %v\n", os.Args[2], err)
			os.Exit(1)
		}
		return
	}
	o, err := parseFlags()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-broker:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench-broker:", err)
		os.Exit(1)
	}
}

func parseFlags() (options, error) {
	o := options{fill: 1 << 30, tail: 1 << 30, touch: 4 << 30, starts: []string{sidestream, kafka}}
	var only string
	var quick bool
	flag.StringVar(&o.dir, "dir", ".cache/bench-broker", "folder for all data, on the disk to be measured; emptied at first")
	flag.StringVar(&o.cache, "cache", ".cache/kafka", "folder that Kafka is fetched into")
	flag.StringVar(&o.out, "out", "", "file for the table, besides standard output")
	flag.StringVar(&o.profile, "profile", "", "folder for a CPU profile of each measurement of our broker")
	flag.StringVar(&only, "only", "", "regular expression: measure only these steps")
	flag.BoolVar(&o.kafka, "kafka", true, "measure Kafka too, if Java and Maven are there")
	flag.IntVar(&o.rounds, "rounds", 3, "measurements of each step and server, 1 or more")
	flag.DurationVar(&o.window, "window", 3*time.Second, "length of one measurement")
	flag.DurationVar(&o.warm, "warm", time.Second, "length of the first measurement of each, which is thrown away")
	flag.BoolVar(&quick, "quick", false, "a look in a few minutes: one short round, little data, no starts of Kafka")
	flag.Parse()
	if quick {
		o.rounds, o.window, o.warm = 1, 300*time.Millisecond, 100*time.Millisecond
		o.fill, o.tail, o.touch = 64<<20, 64<<20, 1<<30
		o.starts = o.starts[:1]
	}
	if o.rounds < 1 || o.window <= 0 || o.warm <= 0 {
		return o, errors.New("rounds must be 1 or more, window and warm positive durations such as 3s")
	}
	var err error
	o.only, err = regexp.Compile(only)
	return o, err
}

// runRole is this program as one of the servers.
func runRole(name string, args []string) error {
	roles := map[string]func([]string) error{
		"agent": agentRole, "produce": produceRole, "sendfile": sendfileRole, "disk": diskRole,
	}
	role := roles[name]
	if role == nil {
		return fmt.Errorf("no such role")
	}
	return role(args)
}

// Command demo runs the main job end to end on real page views: it starts a
// `sidestream dev` with two sidecars in a temporary folder, posts 9,999 views
// through one of them, consumes them through both, and checks that all of them
// arrived once and in order. It exits 1 with the reason when a check fails.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"sidestream/examples/pageviews"
)

func main() {
	binary := flag.String("bin", "bin/sidestream", "the sidestream binary")
	input := flag.String("input", "", "file to post instead of the page views (the checks still expect those)")
	keep := flag.Bool("keep", false, "keep the data folder and print its path")
	limit := flag.Duration("limit", time.Minute, "give up after this long")
	flag.Parse()
	if err := run(*binary, *input, *keep, *limit); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(binary, input string, keep bool, limit time.Duration) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	text := pageviews.Data
	if input != "" {
		if text, err = os.ReadFile(input); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "sidestream-demo-")
	if err != nil {
		return err
	}
	if keep {
		fmt.Println("data folder:", dir)
	} else {
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	return demo{binary: binary, dir: dir, input: text, reference: pageviews.Data, out: os.Stdout}.run(ctx)
}

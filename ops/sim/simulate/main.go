//go:build mutants

// Command simulate plays schedules of the simulator, puts known mistakes back
// one after the other, and says whether each was found. It ends with one line
//
//	seeds=<n> failed=<n> mutants=<found>/<all>
//
// and exits 1 when a seed failed or a mistake was not found.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sidestream/broker/replica"
	"sidestream/ops/sim"
)

func main() {
	seeds := flag.Uint64("seeds", 20_000, "schedules of the small plan, and a tenth of them of the wide one")
	from := flag.Uint64("from", 0, "the first seed")
	one := flag.Int64("seed", -1, "play this schedule only, and tell what happens")
	wide := flag.Bool("wide", false, "with -seed: of the wide plan")
	mutant := flag.String("mutant", "", "put this mistake back, or several with + between them, and look for no other")
	limit := flag.Uint64("limit", 0, "with -mutant: seeds within which it must be found (default: as in the list)")
	mutants := flag.Bool("mutants", true, "look for the known mistakes")
	flag.Parse()

	if *one >= 0 {
		plan := sim.Small
		if *wide {
			plan = sim.Wide
		}
		replica.Mutate(mutations(*mutant)...)
		r := sim.Run(uint64(*one), plan, func(format string, args ...any) { fmt.Printf(format, args...) })
		fmt.Printf("seed %d: %s\n", r.Seed, orFine(r.Bad))
		return
	}

	failed, played := 0, uint64(0)
	if *mutant == "" {
		for _, p := range []struct {
			name  string
			plan  sim.Plan
			seeds uint64
		}{{"small", sim.Small, *seeds}, {"wide", sim.Wide, *seeds / 10}} {
			begun := time.Now()
			t := play(*from, p.seeds, p.plan, 20)
			fmt.Printf("%s: %d seeds, %d records acknowledged, %d elections, %.0f seeds a minute\n", p.name, p.seeds, t.acks, t.elections, float64(p.seeds)/time.Since(begun).Minutes())
			for _, r := range t.failed {
				fmt.Printf("%s: seed %d: %s\n", p.name, r.Seed, r.Bad)
			}
			failed += len(t.failed)
			played += p.seeds
		}
	}
	found, all := 0, 0
	for _, m := range sim.Mutants {
		if !*mutants || *mutant != "" && *mutant != m.Name {
			continue
		}
		all++
		if look(m.Name, max(*limit, m.Seeds)) {
			found++
		}
	}
	if all == 0 && *mutant != "" {
		all++
		if look(*mutant, max(*limit, 40_000)) {
			found++
		}
	}
	fmt.Printf("seeds=%d failed=%d mutants=%d/%d\n", played, failed, found, all)
	if failed > 0 || found < all {
		os.Exit(1)
	}
}

// look for a mistake.
func look(name string, limit uint64) bool {
	replica.Mutate(mutations(name)...)
	defer replica.Mutate()
	begun := time.Now()
	t := play(0, limit, sim.Small, 1)
	if len(t.failed) == 0 {
		fmt.Printf("%-18s not found in %d seeds, %.1f s\n", name, limit, time.Since(begun).Seconds())
		return false
	}
	fmt.Printf("%-18s seed %d, %.1f s: %s\n", name, t.failed[0].Seed, time.Since(begun).Seconds(), t.failed[0].Bad)
	return true
}

func orFine(bad string) string {
	if bad == "" {
		return "all held"
	}
	return bad
}

func mutations(name string) (list []replica.Mutation) {
	for _, m := range strings.Split(name, "+") {
		if m != "" {
			list = append(list, replica.Mutation(m))
		}
	}
	return list
}

// total of many runs.
type total struct {
	mu              sync.Mutex // guards what follows
	acks, elections int
	failed          []sim.Result
}

// play runs seeds on all processors until so many have failed.
func play(from, seeds uint64, plan sim.Plan, enough int) *total {
	var t total
	var next atomic.Uint64
	next.Store(from)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for !stop.Load() {
				seed := next.Add(1) - 1
				if seed >= from+seeds {
					return
				}
				r := sim.Run(seed, plan, nil)
				t.mu.Lock()
				t.acks += r.Acks
				t.elections += r.Elections
				if r.Bad != "" {
					t.failed = append(t.failed, r)
				}
				stop.Store(stop.Load() || len(t.failed) >= enough)
				t.mu.Unlock()
			}
		})
	}
	wg.Wait()
	return &t
}

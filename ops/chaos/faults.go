package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sidestream/sdk/api"
)

// Run is a cluster under load to which faults happen, one after the other. After
// each it must become whole again: every sidecar that runs a member, every
// partition owned and delivered, the shares even.
type Run struct {
	t          testing.TB
	rng        *rand.Rand
	c          *Cluster
	load       *Load
	group      string   // whose owners are looked at, with order=partition
	checker    *Checker // of that group
	partitions int
	pauses     Pauses
	stalls     Stalls    // since the present fault began
	outageOver time.Time // when Consul came back last
}

// Pauses are how long what is paused stays so.
type Pauses struct {
	Sidecar, ConsulDown, ConsulPaused, ConsulAgent time.Duration
}

// Of a long run, as the guarantees speak of them; and of a short one, still on
// the same side of every limit: a session lives 20 s in Consul, is called
// unproven after 10 s, and a host without its agent is seen as gone after 6 s.
var (
	longPauses  = Pauses{Sidecar: 30 * time.Second, ConsulDown: 15 * time.Second, ConsulPaused: 60 * time.Second, ConsulAgent: 10 * time.Second}
	shortPauses = Pauses{Sidecar: 12 * time.Second, ConsulDown: 12 * time.Second, ConsulPaused: 24 * time.Second, ConsulAgent: 10 * time.Second}
)

const (
	// takeoverLimit is in what time others deliver the partitions of a sidecar
	// that was killed: its check turns critical 3 s after its last beat, is
	// believed 1.5 s later, and then partitions are planned, taken and read.
	takeoverLimit = 8 * time.Second
	// wholeLimit is in what time a fault must be over and done with. A Consul that
	// wakes takes the longest: every session is made anew.
	wholeLimit = 60 * time.Second
	// afterOutage is how long after an outage of Consul the agents of hosts may
	// pass on no change of a check (agent/ae of Consul: they try again after 15 to
	// 30 s). Until then a session that nobody ends lives for two of its TTLs.
	afterOutage  = 35 * time.Second
	sessionLimit = 25 * time.Second
	// atRisk is how long before a sidecar fails its acks may be unknown to the
	// others: the interval of checkpoints with the time of writing them.
	atRisk = 3 * time.Second
	// readLate is how long after a kill an application may still find an answer
	// that had been sent before: it is recorded when it is read.
	readLate = 2 * time.Second
)

type fault struct {
	name string
	do   func(*Run)
}

// faults are all, in a fixed order: the seed shuffles them.
var faults = []fault{
	{"kill -9 of a sidecar", (*Run).killSidecar},
	{"kill -9 of a sidecar that restarts at once", (*Run).crashSidecar},
	{"pause of a sidecar", (*Run).pauseSidecar},
	{"SIGTERM to a sidecar", (*Run).stopSidecar},
	{"a sidecar joins and leaves", (*Run).joinAndLeave},
	{"Consul killed and restarted", (*Run).killConsul},
	{"Consul paused", (*Run).pauseConsul},
	{"a host's Consul agent paused", (*Run).pauseAgent},
	{"a broker bounced", (*Run).bounceBroker},
}

// doubleFaults are two at once, for long runs: nothing is said of their time.
var doubleFaults = []fault{
	{"kill -9 of the two oldest members, planner and stand-by", (*Run).killPlanners},
	{"kill -9 of a sidecar while Consul is paused", (*Run).killWithoutConsul},
	{"SIGTERM to a sidecar while Consul is paused", (*Run).stopWithoutConsul},
	{"kill -9 of a sidecar while a broker is down", (*Run).killWithoutBroker},
}

// Round lets every fault happen once, in an order of the seed, until a time.
func (r *Run) Round(faults []fault, until time.Time) {
	r.t.Helper()
	for _, i := range r.rng.Perm(len(faults)) {
		if !time.Now().Before(until) {
			return
		}
		began := time.Now()
		r.stalls.Reset()
		r.note("%s …", faults[i].name)
		faults[i].do(r)
		r.note("%s: whole again after %v", faults[i].name, time.Since(began).Round(10*time.Millisecond))
		time.Sleep(upTo(r.rng, 2*time.Second)) // faults come at any moment
	}
}

func (r *Run) note(format string, args ...any) {
	r.t.Helper()
	r.t.Logf("%s %s", clock(time.Now()), fmt.Sprintf(format, args...))
}

func (r *Run) pick() *Process {
	ps := r.load.Healthy()
	return ps[r.rng.IntN(len(ps))]
}

// owners is who owns each partition in which generation.
type owners map[int32]api.OwnedBy

// owners asks any sidecar that is well.
func (r *Run) owners() (owners, api.Group, error) {
	p := r.load.Healthy()[0]
	var g api.Group
	if _, err := call("GET", p.HTTP+"/groups/"+r.group, nil, &g); err != nil {
		return nil, g, fmt.Errorf("%s: %w", p.Name, err)
	}
	os := owners{}
	for _, o := range g.Owners {
		os[o.Partition] = o
	}
	return os, g, nil
}

// loses is Loses for all groups.
func (r *Run) loses(by, why string, from time.Time) (over func(time.Time)) {
	var all []func(time.Time)
	for _, c := range r.load.groups {
		all = append(all, c.Loses(by, why, from))
	}
	return func(at time.Time) {
		for _, over := range all {
			over(at)
		}
	}
}

// whole waits until the groups are what they should be: their members are the
// sidecars that are well, who own all partitions evenly and have delivered
// something of each since the call. It returns the owners.
func (r *Run) whole() (os owners) {
	r.t.Helper()
	began := time.Now()
	eventually(r.t, wholeLimit, func() error {
		var g api.Group
		var err error
		if os, g, err = r.owners(); err != nil {
			return err
		}
		share := map[string]int{}
		for _, p := range r.load.Healthy() {
			share[p.Name] = 0
		}
		if len(g.Members) != len(share) {
			return fmt.Errorf("members are %v, well are %v", g.Members, share)
		}
		for _, o := range os {
			if _, ok := share[o.Owner]; !ok {
				return fmt.Errorf("partition %d is owned by %q", o.Partition, o.Owner)
			}
			share[o.Owner]++
		}
		lo, hi := r.partitions, 0
		for _, n := range share {
			lo, hi = min(lo, n), max(hi, n)
		}
		if len(os) != r.partitions || hi > lo+1 {
			return fmt.Errorf("shares are not even: %v", share)
		}
		for group, c := range r.load.groups {
			if quiet := c.Quiet(began); len(quiet) > 0 {
				return fmt.Errorf("group %s: nothing delivered of partitions %v since %s, which in group %s %s", group, quiet, clock(began), r.group, r.describe(os, quiet))
			}
		}
		return nil
	})
	r.ended()
	return os
}

func (r *Run) describe(os owners, partitions []int) string {
	var list []string
	for _, p := range partitions {
		o := os[int32(p)]
		list = append(list, fmt.Sprintf("%s owns in generation %d", o.Owner, o.Generation))
	}
	return few(list)
}

// ended breaks a rule for every process that ended by itself: one that found a
// race ends so, too.
func (r *Run) ended() {
	for _, p := range r.c.all() {
		if p.cmd != nil && p.Exited() && !r.expectedDown(p) {
			r.checker.Break(ruleProcess, "%s ended by itself", p.Name)
			r.t.Fatalf("%s ended by itself\n%s", p.Name, p.Tail())
		}
	}
}

func (r *Run) expectedDown(p *Process) bool {
	return strings.HasPrefix(p.Name, "sidecar") && r.load.excused(p, time.Now())
}

// breakIfSteady breaks a rule about time, unless this machine stood still.
func (r *Run) breakIfSteady(rule, format string, args ...any) {
	r.t.Helper()
	if worst := r.stalls.Worst(); worst > stallLimit {
		r.note("  not judged, since this machine stood still for %v: %s", worst.Round(time.Millisecond), fmt.Sprintf(format, args...))
		return
	}
	r.checker.Break(rule, format, args...)
}

// unmoved breaks a rule for each partition that another owner, or a later
// generation, has now.
func (r *Run) unmoved(why string, before, after owners) {
	for p, o := range after {
		if b := before[p]; b.Owner != o.Owner || b.Generation != o.Generation {
			r.breakIfSteady(ruleMoved, "%s: partition %d was of %s in generation %d, and is of %s in %d", why, p, b.Owner, b.Generation, o.Owner, o.Generation)
		}
	}
}

// takeover waits until others have delivered the partitions that a sidecar had.
func (r *Run) takeover(what string, of *Process, partitions []int, since time.Time) {
	r.t.Helper()
	var slowest time.Duration
	eventually(r.t, wholeLimit, func() error {
		for _, p := range partitions {
			by, at := r.checker.LastDelivery(p)
			if by == of.Name || !at.After(since) {
				return fmt.Errorf("%s: partition %d of %s is delivered by nobody else yet", what, p, of.Name)
			}
		}
		return nil
	})
	slowest = time.Since(since)
	r.note("  %d partitions of %s are delivered by others after %v", len(partitions), of.Name, slowest.Round(10*time.Millisecond))
	limit := takeoverLimit
	if since.Sub(r.outageOver) < afterOutage {
		limit = sessionLimit
	}
	if slowest > limit {
		r.breakIfSteady(ruleLate, "%s: the partitions of %s were delivered by others only after %v", what, of.Name, slowest)
	}
}

func (r *Run) start(p *Process) {
	r.t.Helper()
	p.Start()
	p.WaitReady(wholeLimit)
	r.load.Faulty(p, false)
}

func (r *Run) killSidecar() {
	p := r.pick()
	parts := r.checker.DeliveredBy(p.Name)
	r.kill(p)
	r.takeover("kill -9", p, parts, time.Now())
	r.whole()
	r.start(p)
	r.whole()
}

func (r *Run) crashSidecar() {
	p := r.pick()
	r.kill(p)
	time.Sleep(upTo(r.rng, 4*time.Second)) // around the moment at which it is suspected
	r.start(p)
	r.whole()
}

func (r *Run) pauseSidecar() {
	p := r.pick()
	parts := r.checker.DeliveredBy(p.Name)
	r.load.Faulty(p, true)
	over := r.loses(p.Name, "pause", time.Now().Add(-atRisk))
	p.Signal(syscall.SIGSTOP)
	paused := time.Now()
	r.takeover("pause", p, parts, paused)
	time.Sleep(r.pauses.Sidecar - time.Since(paused)) // the pause is the fault
	p.Signal(syscall.SIGCONT)
	p.WaitReady(wholeLimit)
	r.load.Faulty(p, false)
	r.whole()
	over(time.Now())
}

func (r *Run) stopSidecar() {
	p := r.pick()
	parts := r.checker.DeliveredBy(p.Name)
	r.load.Faulty(p, true)
	p.Stop()
	r.takeover("SIGTERM", p, parts, time.Now())
	r.whole()
	r.start(p)
	r.whole()
}

// joinAndLeave also looks at what moves: the joining sidecar's share and no
// more, there and back.
func (r *Run) joinAndLeave() {
	p := r.c.Spares[0]
	before := r.whole()
	r.start(p)
	joined := r.whole()
	moved := 0
	for n, o := range joined {
		if before[n].Generation == o.Generation {
			continue
		}
		if moved++; o.Owner != p.Name {
			r.breakIfSteady(ruleMoved, "%s joined, and partition %d moved from %s to %s", p.Name, n, before[n].Owner, o.Owner)
		}
	}
	if least := r.partitions / len(r.load.Healthy()); moved > least+1 {
		r.breakIfSteady(ruleMoved, "%s joined, and %d partitions moved, where %d must", p.Name, moved, least)
	}
	r.load.Faulty(p, true)
	p.Stop()
	for n, o := range r.whole() {
		if joined[n].Generation != o.Generation && joined[n].Owner != p.Name {
			r.breakIfSteady(ruleMoved, "%s left, and partition %d moved from %s to %s", p.Name, n, joined[n].Owner, o.Owner)
		}
	}
}

// outageLimit is how long a message may take while Consul is away: applications
// abandon some, each of which holds up its partition for a lease, and now and then
// two in a row.
const outageLimit = 2*consumptionLease + 2*time.Second

// outage checks that everything goes on while Consul is away: events are taken,
// and what was taken is delivered. A partition that nothing was written to, since
// its disk was busy, tells nothing of Consul.
func (r *Run) outage(why string, promised map[string]int) {
	for group, c := range r.load.groups {
		if stuck := c.Stuck(time.Now().Add(-outageLimit)); len(stuck) > 0 {
			r.breakIfSteady(ruleLate, "%s: what was published more than %v ago is not delivered to group %s of partitions %v", why, outageLimit, group, stuck)
		}
		if c.Promised() == promised[group] {
			r.breakIfSteady(ruleLate, "%s: nothing could be published", why)
		}
	}
}

// promised counts what the groups were promised so far.
func (r *Run) promised() map[string]int {
	n := map[string]int{}
	for group, c := range r.load.groups {
		n[group] = c.Promised()
	}
	return n
}

func (r *Run) killConsul() {
	before := r.whole()
	r.c.Consul.Kill()
	promised := r.promised()
	time.Sleep(r.pauses.ConsulDown)
	r.outage("Consul killed", promised)
	r.c.Consul.Restart()
	r.unmoved("Consul killed and restarted", before, r.whole())
	r.outageOver = time.Now()
}

func (r *Run) pauseConsul() {
	over := r.loses("", "pause of Consul", time.Now().Add(-atRisk))
	told := r.checker.Unproven()
	r.c.Consul.Pause()
	promised := r.promised()
	time.Sleep(r.pauses.ConsulPaused)
	r.outage("Consul paused", promised)
	if r.checker.Unproven() == told {
		r.checker.Break(ruleOwners, "no pull said that its ownership is unproven in %v without Consul", r.pauses.ConsulPaused)
	}
	r.c.Consul.Resume()
	r.whole()
	over(time.Now())
	r.outageOver = time.Now()
}

func (r *Run) pauseAgent() {
	before := r.whole()
	p := r.pick()
	p.Consul.Pause()
	promised := r.promised()
	time.Sleep(r.pauses.ConsulAgent)
	r.outage("a Consul agent paused", promised)
	p.Consul.Resume()
	time.Sleep(3 * time.Second) // whoever would suspect the host has done so by now
	r.unmoved("the Consul agent of "+p.Name+"'s host was paused", before, r.whole())
}

func (r *Run) bounceBroker() {
	before := r.whole()
	p := r.c.Agents[r.rng.IntN(len(r.c.Agents))]
	if r.rng.IntN(2) == 0 {
		p.Kill()
	} else {
		p.Stop()
	}
	time.Sleep(upTo(r.rng, 2*time.Second))
	p.Start()
	p.WaitReady(wholeLimit)
	r.unmoved(p.Name+" bounced", before, r.whole())
}

// kill is kill -9 as the checker and the load must know of it.
func (r *Run) kill(p *Process) {
	r.t.Helper()
	r.load.Faulty(p, true)
	over := r.loses(p.Name, "kill -9", time.Now().Add(-atRisk))
	p.Kill()
	over(time.Now().Add(readLate))
}

func (r *Run) killPlanners() {
	r.t.Helper()
	_, g, err := r.owners()
	if err != nil {
		r.t.Fatal(err)
	}
	slices.SortFunc(g.Members, func(a, b api.GroupMember) int { return a.Joined.Compare(b.Joined) })
	var killed []*Process
	for _, p := range r.load.Healthy() {
		if p.Name == g.Members[0].Sidecar || p.Name == g.Members[1].Sidecar {
			killed = append(killed, p)
		}
	}
	for _, p := range killed {
		r.kill(p)
	}
	r.whole()
	for _, p := range killed {
		r.start(p)
	}
	r.whole()
}

func (r *Run) killWithoutConsul() {
	r.t.Helper()
	over := r.loses("", "pause of Consul", time.Now().Add(-atRisk))
	p := r.pick()
	r.c.Consul.Pause()
	time.Sleep(upTo(r.rng, 12*time.Second)) // proven still, or not any more
	r.kill(p)
	time.Sleep(upTo(r.rng, 12*time.Second))
	r.c.Consul.Resume()
	r.start(p)
	r.whole()
	over(time.Now())
	r.outageOver = time.Now()
}

// stopWithoutConsul can write no checkpoint, so what was acknowledged is known
// to its own disk alone.
func (r *Run) stopWithoutConsul() {
	r.t.Helper()
	over := r.loses("", "pause of Consul", time.Now().Add(-atRisk))
	p := r.pick()
	r.c.Consul.Pause()
	time.Sleep(upTo(r.rng, 12*time.Second))
	r.load.Faulty(p, true)
	began := time.Now()
	p.Stop()
	r.note("  %s left after %v", p.Name, time.Since(began).Round(10*time.Millisecond))
	r.c.Consul.Resume()
	r.start(p)
	r.whole()
	over(time.Now())
	r.outageOver = time.Now()
}

func (r *Run) killWithoutBroker() {
	r.t.Helper()
	b, p := r.c.Agents[r.rng.IntN(len(r.c.Agents))], r.pick()
	b.Kill()
	time.Sleep(upTo(r.rng, 2*time.Second))
	r.kill(p)
	time.Sleep(upTo(r.rng, 8*time.Second))
	b.Start()
	b.WaitReady(wholeLimit)
	r.whole()
	r.start(p)
	r.whole()
}

package sim

import (
	"bufio"
	"fmt"
	"strconv"
	"strings"
	"time"

	"sidestream/broker/replica"
)

// Script plays a schedule that is written down, one command a line, and tells
// what happens. Nothing in it is left to chance: messages wait until they are
// delivered, and brokers do nothing by themselves. Lines that begin with # are
// its story.
//
//	world brokers=3 parts=1 replicas=3 min=2   the first line
//	read B…           brokers read the store, and are registered by that
//	look B            B becomes the controller, if nobody is, and decides; what it writes is under way
//	deliver [N]       everything that is under way, and what follows from it; or the first N messages
//	drop              everything that is under way is lost
//	publish B N       N records with acks=all at B; weak B N: with acks=1
//	sync B…           a group commit
//	feed B C          leader B sends C what it has not sent; it is under way
//	settle            all that are up read, look, sync and feed until nothing more happens,
//	                  a quarter of a second at a time
//	tick B…           the passing of time at B
//	gone B C          B is told that the process of C is gone
//	kill B · power B KEEP · start B · recall B · pause B · resume B · wipe B · forget B
//	cut B C · join    from B to C nothing arrives; all cuts end. The store is "store"
//	store down · store up
//	raise P           partition P gets one more copy
//	trim B OFFSET     leader B deletes what lies below
//	clock DURATION    the clock goes on
//	show [P]          how every replica of the partition stands
func Script(text string, tell func(format string, args ...any)) error {
	var w *world
	for n, line := range lines(text) {
		fields := strings.Fields(line)
		if w == nil {
			plan, err := planOf(fields)
			if err != nil {
				return fmt.Errorf("line %d: %w", n, err)
			}
			w = newWorld(1, plan)
			w.faults, w.trace = false, tell
			continue
		}
		tell("> %s\n", line)
		if err := w.command(fields); err != nil {
			return fmt.Errorf("line %d: %s: %w", n, line, err)
		}
		if w.bad != "" {
			return fmt.Errorf("line %d: %s: %s", n, line, w.bad)
		}
	}
	return nil
}

// lines are the commands, by their numbers.
func lines(text string) func(yield func(int, string) bool) {
	return func(yield func(int, string) bool) {
		s := bufio.NewScanner(strings.NewReader(text))
		for n := 1; s.Scan(); n++ {
			line := strings.TrimSpace(s.Text())
			if line != "" && !strings.HasPrefix(line, "#") && !yield(n, line) {
				return
			}
		}
	}
}

func planOf(fields []string) (Plan, error) {
	p := Plan{Brokers: 3, Parts: 1, Replicas: 3, MinISR: 2}
	if fields[0] != "world" {
		return p, fmt.Errorf("got %q: begin with world", fields[0])
	}
	for _, f := range fields[1:] {
		name, value, _ := strings.Cut(f, "=")
		n, err := strconv.Atoi(value)
		if err != nil {
			return p, fmt.Errorf("got %q: use name=number", f)
		}
		switch name {
		case "brokers":
			p.Brokers = n
		case "parts":
			p.Parts = n
		case "replicas":
			p.Replicas = n
		case "min":
			p.MinISR = n
		default:
			return p, fmt.Errorf("got %q: use brokers, parts, replicas or min", f)
		}
	}
	p.Shard = p.Parts
	return p, nil
}

func (w *world) command(fields []string) error {
	verb, args := fields[0], fields[1:]
	var numbers []int
	for _, a := range args {
		n, err := strconv.Atoi(a)
		if a == "store" {
			n, err = storeNode, nil
		}
		if err == nil {
			numbers = append(numbers, n)
		}
	}
	first := func() *broker { return w.brokers[numbers[0]] }
	each := func(do func(*broker)) {
		for _, n := range numbers {
			do(w.brokers[n])
		}
	}
	need := map[string]int{"look": 1, "publish": 2, "weak": 2, "feed": 2, "gone": 2, "kill": 1, "power": 2, "start": 1, "recall": 1, "pause": 1, "resume": 1, "wipe": 1, "forget": 1, "cut": 2, "raise": 1, "trim": 2}
	if len(numbers) < need[verb] {
		return fmt.Errorf("%d numbers are needed", need[verb])
	}
	switch verb {
	case "read":
		each(func(b *broker) {
			w.send(message{kind: kindRead, from: b.id, to: storeNode, boot: b.boot, folder: b.folder})
		})
	case "look":
		b := first()
		w.send(message{kind: kindLook, from: b.id, to: storeNode, boot: b.boot})
		w.deliverAt(len(w.net) - 1) // to the store
		w.deliverAt(len(w.net) - 1) // and back
	case "deliver":
		limit := 1000
		if len(numbers) > 0 {
			limit = numbers[0]
		}
		for ; limit > 0 && len(w.net) > 0; limit-- {
			w.deliverAt(0)
		}
	case "drop":
		w.net = nil
	case "publish", "weak":
		return w.publish(first(), numbers[1], verb == "publish")
	case "sync":
		each(func(b *broker) { w.all(b, func(part int) { w.sync(b, part) }) })
	case "feed":
		w.all(first(), func(part int) { w.feedTo(first(), part, numbers[1]) })
	case "settle":
		w.settle()
	case "tick":
		each(func(b *broker) { w.all(b, func(part int) { w.step(b, part, replica.Tick{}) }) })
	case "gone":
		w.all(first(), func(part int) { w.step(first(), part, replica.Gone{Broker: int32(numbers[1])}) })
	case "kill":
		w.crash(first(), false)
	case "power":
		for _, c := range first().copies {
			c.log = c.log[:max(c.flushed, min(int64(numbers[1]), int64(len(c.log))))]
		}
		w.crash(first(), false)
	case "start":
		w.start(first())
	case "recall":
		w.all(first(), func(part int) {
			if c := first().copies[part]; c.cached != nil {
				w.tell(first(), part, c.cached, true)
			}
		})
	case "pause":
		first().paused = true
	case "resume":
		first().paused = false
		inbox := first().inbox
		first().inbox = nil
		for _, m := range inbox {
			w.handle(first(), m)
		}
	case "wipe":
		w.wipe(first())
	case "forget":
		w.forget(first())
	case "cut":
		w.cut[node(numbers[0])][node(numbers[1])] = true
	case "join":
		for i := range w.cut {
			clear(w.cut[i])
		}
	case "store":
		w.storeUp = len(args) == 1 && args[0] == "up"
	case "raise":
		if h := w.store.holder; h >= 0 {
			b := w.brokers[h]
			b.picture = w.store
			if slot, ok := w.raised(b.picture, numbers[0]); ok {
				w.write(b, message{part: numbers[0], slot: slot, leader: -1})
			}
		}
	case "trim":
		return w.trimTo(first(), int64(numbers[1]))
	case "clock":
		d, err := time.ParseDuration(args[0])
		w.now += d
		return err
	case "show":
		part := 0
		if len(numbers) > 0 {
			part = numbers[0]
		}
		w.show(part)
	default:
		return fmt.Errorf("unknown command %q", verb)
	}
	return nil
}

func (w *world) all(b *broker, do func(part int)) {
	for part := range b.copies {
		if b.up && !b.paused {
			do(part)
		}
	}
}

func (w *world) publish(b *broker, n int, all bool) error {
	for range n {
		c := b.copies[0]
		if c.Role != replica.Leader {
			w.say("NOT_LEADER_OR_FOLLOWER from %d", b.id)
			return nil
		}
		if all && !c.Writable() {
			w.say("NOT_ENOUGH_REPLICAS from %d", b.id)
			return nil
		}
		if all {
			c.waiting = append(c.waiting, c.End)
		}
		w.append(b, 0, record{producer: -1})
	}
	return nil
}

func (w *world) trimTo(b *broker, to int64) error {
	c := b.copies[0]
	w.step(b, 0, replica.Trimmed{Start: to})
	c.start = c.Start
	w.trimmed[0] = max(w.trimmed[0], c.Start)
	return nil
}

// settle lets everybody do what there is to do, until nothing changes any more.
func (w *world) settle() {
	for before := ""; ; {
		w.now += 250 * time.Millisecond
		for _, b := range w.brokers {
			if !b.up || b.paused {
				continue
			}
			w.send(message{kind: kindRead, from: b.id, to: storeNode, boot: b.boot, folder: b.folder})
			w.send(message{kind: kindLook, from: b.id, to: storeNode, boot: b.boot})
			w.all(b, func(part int) {
				w.sync(b, part)
				w.step(b, part, replica.Tick{})
				for to := range w.brokers {
					w.feedTo(b, part, to)
				}
			})
		}
		for limit := 1000; limit > 0 && len(w.net) > 0; limit-- {
			w.deliverAt(0)
		}
		after := fmt.Sprint(w.store.slots, w.store.folders, w.acks)
		for _, b := range w.brokers {
			for _, c := range b.copies {
				after += fmt.Sprint(c.Role, c.Slot.Version, c.Start, c.End, c.Synced, c.HW, c.Noted)
			}
		}
		if after == before || w.bad != "" {
			return
		}
		before = after
	}
}

func (w *world) show(part int) {
	s := w.store.slots[part]
	w.say("slot: %s", slotText(&s))
	for _, id := range s.Replicas {
		b := w.brokers[id]
		c := b.copies[part]
		state := c.Role.String()
		if !b.up {
			state = "down"
		}
		log := make([]string, 0, len(c.log))
		for o := c.start; o < int64(len(c.log)); o++ {
			log = append(log, fmt.Sprintf("%d:%d", c.log[o].epoch, c.log[o].value))
		}
		w.say("%d: %s, epoch %d, %d to %d, synced %d, high watermark %d, noted %d, [%s]", id, state, c.Slot.Epoch, c.Start, c.End, c.Synced, c.HW, c.Noted, strings.Join(log, " "))
	}
	w.say("acknowledged: %d", len(w.acked[part]))
}

// slotText is a slot as people read it: sets by the brokers' ids.
func slotText(s *replica.Slot) string {
	names := func(set replica.Set) string {
		var list []string
		for i, id := range s.Replicas {
			if set.Has(i) {
				list = append(list, fmt.Sprint(id))
			}
		}
		return "[" + strings.Join(list, " ") + "]"
	}
	text := fmt.Sprintf("version %d, leader %d, epoch %d, replicas %v, ISR %s", s.Version, s.Leader, s.Epoch, s.Replicas, names(s.ISR))
	for _, x := range []struct {
		name string
		set  replica.Set
	}{{"ELR", s.ELR}, {"adding", s.Adding}, {"lost", s.Lost}} {
		if x.set != 0 {
			text += ", " + x.name + " " + names(x.set)
		}
	}
	return text
}

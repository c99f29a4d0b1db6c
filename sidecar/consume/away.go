package consume

// away counts the partitions of the choice's topics that this sidecar has, or is
// about to have, and that cannot be read for now, since their leader is away:
// what is in them comes later. Records that nobody can read are another matter.
func (sub *subscription) away() (n int) {
	if sub.g.m.outage.quiet() {
		return 0 // so that well pulls pay nothing
	}
	for _, s := range sub.list() {
		n += s.away()
	}
	return n
}

func (s *share) away() (n int) {
	for _, o := range s.list() {
		if o.away() {
			n++
		}
	}
	return n
}

func (o *owner) away() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.why != "" && !o.unreadable
}

// AwayPartition is a partition that an application consumes through this sidecar
// and whose leader is away.
type AwayPartition struct {
	Topic     string
	Partition int32
	Why       string
}

// Away lists the partitions of all groups that cannot be read for now, since
// their leader is away. One that several groups have is told once.
func (m *Manager) Away() []AwayPartition {
	if m.outage.quiet() {
		return nil
	}
	seen := map[AwayPartition]bool{}
	var all []AwayPartition
	for _, g := range m.all() {
		for _, s := range g.all() {
			for _, o := range s.list() {
				o.mu.Lock()
				p := AwayPartition{Topic: o.key.Topic, Partition: o.key.Partition, Why: o.why}
				is := o.why != "" && !o.unreadable
				o.mu.Unlock()
				key := AwayPartition{Topic: p.Topic, Partition: p.Partition}
				if is && !seen[key] {
					seen[key] = true
					all = append(all, p)
				}
			}
		}
	}
	return all
}

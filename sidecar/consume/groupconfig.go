package consume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"sidestream/discovery"
	"sidestream/sdk/api"
	"sidestream/sidecar/consume/window"
	"sidestream/sidecar/timespan"
)

// Values of a group's settings.
const (
	fromEarliest = "earliest"
	fromLatest   = "latest"

	exclusiveAvailable = "available"
	exclusiveStrict    = "strict"

	deadSkip = "skip" // what would be a dead letter is dropped, and counted
	deadOff  = "off"  // nothing is diverted: a message comes again until it is acknowledged

	unreadableDead = "dead" // as dead says
	unreadableSkip = "skip"
	unreadableStop = "stop"

	defaultMaxAttempts = 10
	mostAttempts       = 1000
	noLimit            = -1 // of max_attempts in the store, where 0 is a group that says nothing
)

// parseFrom checks where a group begins and brings it to one form; zero time
// for earliest and latest.
func parseFrom(from string) (string, time.Time, error) {
	switch from {
	case "", fromEarliest:
		return fromEarliest, time.Time{}, nil
	case fromLatest:
		return fromLatest, time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339Nano, from)
	if err != nil {
		return "", time.Time{}, badRequest("from=%q: use earliest, latest or a time such as 2026-01-31T08:00:00Z", from)
	}
	return t.UTC().Format(time.RFC3339Nano), t, nil
}

// parseDuration reads a duration of a JSON body as the query's are read.
func parseDuration(name, s string, least, most time.Duration) (time.Duration, error) {
	d, err := timespan.Parse(s)
	if err != nil || d < least || d > most {
		return 0, badRequest("%s=%q: use %s, from %s to %s%s", name, s, timespan.Form, least, most, timespan.Hint(s, least, most))
	}
	return d, nil
}

// mergeConfig lays what a request asks for over a group's settings.
func mergeConfig(c discovery.GroupConfig, want api.GroupConfig) (discovery.GroupConfig, error) {
	if want.Order != "" {
		if err := window.CheckOrder(window.Order(want.Order)); err != nil {
			return c, badRequest("%v", err)
		}
		c.Order = want.Order
	}
	if want.Lease != "" {
		d, err := parseDuration("lease", want.Lease, MinLease, MaxLease)
		if err != nil {
			return c, err
		}
		c.LeaseMillis = d.Milliseconds()
	}
	if n := want.MaxAttempts; n != nil {
		switch {
		case *n < 0 || *n > mostAttempts:
			return c, badRequest("max_attempts=%d: use 1 to %d, or 0 for no limit", *n, mostAttempts)
		case *n == 0:
			c.MaxAttempts = noLimit
		default:
			c.MaxAttempts = *n
		}
	}
	if want.Dead != "" {
		if err := discovery.CheckName("topic", want.Dead); err != nil {
			return c, badRequest("dead=%q: use the name of a topic, %s or %s: %v", want.Dead, deadSkip, deadOff, err)
		}
		c.Dead = want.Dead
	}
	switch want.Unreadable {
	case "":
	case unreadableDead, unreadableSkip, unreadableStop:
		c.Unreadable = want.Unreadable
	default:
		return c, badRequest("unreadable=%q: use %s, %s or %s", want.Unreadable, unreadableDead, unreadableSkip, unreadableStop)
	}
	switch want.Exclusive {
	case "":
	case exclusiveAvailable, exclusiveStrict:
		c.Exclusive = want.Exclusive
	default:
		return c, badRequest("exclusive=%q: use %s or %s", want.Exclusive, exclusiveAvailable, exclusiveStrict)
	}
	if want.From != "" {
		from, _, err := parseFrom(want.From)
		if err != nil {
			return c, err
		}
		c.From = from
	}
	if want.Ephemeral != nil {
		c.Ephemeral = *want.Ephemeral
	}
	return c, nil
}

// newGroupConfig are the settings of a group that nobody configured.
func newGroupConfig() discovery.GroupConfig {
	return discovery.GroupConfig{
		Order:     string(window.OrderPartition),
		Exclusive: exclusiveAvailable,
		From:      fromEarliest,
		Created:   time.Now().UTC().Format(time.RFC3339Nano),
	}
}

// showConfig is what applications see of a group's settings; defaultLease is
// shown where the group has none.
func showConfig(group string, c discovery.GroupConfig, defaultLease time.Duration) api.GroupConfig {
	attempts := attemptsOf(c)
	shown := api.GroupConfig{
		Order: c.Order, Lease: defaultLease.String(), MaxAttempts: &attempts, Exclusive: c.Exclusive, From: c.From,
		Dead: deadOf(group, c), Unreadable: c.Unreadable,
	}
	if c.Ephemeral {
		shown.Ephemeral = &c.Ephemeral
	}
	if shown.Unreadable == "" {
		shown.Unreadable = unreadableDead
	}
	if c.LeaseMillis > 0 {
		shown.Lease = (time.Duration(c.LeaseMillis) * time.Millisecond).String()
	}
	if shown.Order == "" {
		shown.Order = string(window.OrderPartition)
	}
	if shown.Exclusive == "" {
		shown.Exclusive = exclusiveAvailable
	}
	if shown.From == "" {
		shown.From = fromEarliest
	}
	return shown
}

// attemptsOf is a group's max_attempts; 0 for no limit.
func attemptsOf(c discovery.GroupConfig) int {
	switch c.MaxAttempts {
	case 0:
		return defaultMaxAttempts
	case noLimit:
		return 0
	}
	return c.MaxAttempts
}

// deadOf is where a group's dead letters go: a topic, deadSkip or deadOff.
func deadOf(group string, c discovery.GroupConfig) string {
	if c.Dead == "" {
		return deadTopic(group)
	}
	return c.Dead
}

// maxAttempts is after how many hand-outs a message of a topic must be diverted;
// 0: never. What cannot be diverted has no limit, and what a group pulls from
// its own dead letters would come back to them for ever.
func maxAttempts(group, topic string, c discovery.GroupConfig) int {
	if dead := deadOf(group, c); dead == deadOff || dead == topic {
		return 0
	}
	return attemptsOf(c)
}

// deadLetterPrefix begins the names of topics of dead letters. Patterns of topics do
// not match them.
const deadLetterPrefix = "dead."

// deadTopic is where a group's dead letters go unless it says otherwise. The
// name of a topic is bounded, so those of groups with longer names end in a
// checksum.
func deadTopic(group string) string {
	name := deadLetterPrefix + group
	if len(name) <= discovery.MaxNameLen {
		return name
	}
	sum := sha256.Sum256([]byte(group))
	end := "." + hex.EncodeToString(sum[:8])
	return name[:discovery.MaxNameLen-len(end)] + end
}

// contradicts says whether a pull's from differs from the group's.
func contradicts(c discovery.GroupConfig, from string) bool {
	have, _, err := parseFrom(c.From)
	return err == nil && from != "" && from != have
}

// readConfig reads a group's settings; group_not_found when there are none.
func (m *Manager) readConfig(ctx context.Context, group string) (discovery.GroupConfig, uint64, error) {
	e, err := m.store.Get(ctx, discovery.KeyGroupConfig(group))
	if errors.Is(err, discovery.ErrNotFound) {
		return discovery.GroupConfig{}, 0, errNoGroup(group)
	}
	if err != nil {
		return discovery.GroupConfig{}, 0, storeError("read the group's settings", err)
	}
	c, err := discovery.Decode[discovery.GroupConfig](e)
	if err != nil {
		return discovery.GroupConfig{}, 0, apiError(api.CodeInternal, "the settings of group %s cannot be read: %v", group, err)
	}
	return c, e.Version, nil
}

// changeConfig applies a change to a group's settings by compare-and-swap;
// change is given defaults where there are none. It is called again on a
// conflict.
func (m *Manager) changeConfig(ctx context.Context, group string, change func(c discovery.GroupConfig, exists bool) (discovery.GroupConfig, error)) (discovery.GroupConfig, error) {
	for {
		c, version, err := m.readConfig(ctx, group)
		exists := err == nil
		if isCode(err, api.CodeGroupNotFound) {
			c = newGroupConfig()
		} else if err != nil {
			return c, err
		}
		next, err := change(c, exists)
		if err != nil {
			return c, err
		}
		if exists && next == c {
			return c, nil
		}
		next.Writer = discovery.NewNonce()
		ops := []discovery.Op{discovery.CAS(discovery.KeyGroupConfig(group), discovery.Encode(next), version)}
		if exists { // its planner tells the members to read them again
			ops = append(ops, discovery.Set(discovery.KeySettings(group), discovery.Encode(discovery.Settings{Writer: next.Writer})))
		}
		_, err = m.store.Commit(ctx, ops...)
		switch {
		case err == nil:
			return next, nil
		case errors.Is(err, discovery.ErrConflict), errors.Is(err, discovery.ErrUnknownOutcome):
			if ctx.Err() != nil {
				return c, storeError("write the group's settings", ctx.Err())
			}
		default:
			return c, storeError("write the group's settings", err)
		}
	}
}

// Configure makes a group or changes its settings. Fields that are empty stay
// as they are. From matters only for topics that nobody of the group pulled yet.
func (m *Manager) Configure(ctx context.Context, group string, want api.GroupConfig) (api.Group, error) {
	if err := checkGroup(group); err != nil {
		return api.Group{}, err
	}
	c, err := m.changeConfig(ctx, group, func(c discovery.GroupConfig, _ bool) (discovery.GroupConfig, error) {
		return mergeConfig(c, want)
	})
	if err != nil {
		return api.Group{}, err
	}
	if g := m.lookup(group); g != nil {
		g.setConfig(c)
	}
	return m.Group(ctx, group)
}

func checkGroup(group string) error {
	if err := discovery.CheckName("group", group); err != nil {
		return badRequest("%v", err)
	}
	return nil
}

func checkNames(group, topic string) error {
	if err := checkGroup(group); err != nil {
		return err
	}
	if err := discovery.CheckName("topic", topic); err != nil {
		return badRequest("%v", err)
	}
	return nil
}

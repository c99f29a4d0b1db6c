package spool

import (
	"fmt"
	"time"
)

// Config is how events are kept on this host until the brokers have them.
type Config struct {
	MaxBytes       int64         `yaml:"max_bytes" help:"Most bytes of spooled messages on this host's disk, 67108864 (64 MiB) to 1 TiB; what happens then is on_full's to say."`
	MaxAge         time.Duration `yaml:"max_age" help:"How old the oldest message that is not written yet may become, 1m to 8760h; what happens then is on_age's to say."`
	OnFull         string        `yaml:"on_full" help:"What happens when max_bytes are used: refuse answers further messages with 503 spool_full; reject_oldest moves the oldest ones to the file of rejected messages."`
	OnAge          string        `yaml:"on_age" help:"What happens when a message is older than max_age: refuse answers further messages with 503 spool_full until it is written; reject moves it to the file of rejected messages."`
	Fallback       bool          `yaml:"fallback" help:"Take a message into the spool (202) in place of 503 brokers_unavailable, when its request carries the header Prefer: respond-async."`
	DrainBytes     int64         `yaml:"drain_bytes_per_second" help:"Most bytes per second that are sent from the spool to the brokers, so that live messages have room, 65536 (64 KiB) to 10 GiB."`
	Outcomes       int           `yaml:"outcomes" help:"How many of the last messages GET /spool/{id} knows the fate of, 1000 to 100000000; each costs 24 bytes of disk."`
	RejectBytes    int64         `yaml:"reject_bytes" help:"Largest size of the file of rejected messages in bytes, 1048576 (1 MiB) to 1 TiB. Beyond it nothing is rejected any more: such messages stay and hold up their partition until the file is moved away."`
	MissingTopic   time.Duration `yaml:"missing_topic" help:"How long the brokers must have denied a topic or partition before its messages are rejected, 1s to 24h; less could be a restart of brokers, or a topic about to be made."`
	MetadataWait   time.Duration `yaml:"metadata_wait" help:"How long a message waits for what the brokers say of its topic before what is remembered of it counts, 1ms to 10s."`
	SendWait       time.Duration `yaml:"send_wait" help:"How long the brokers may leave a spooled message without an answer before its partition counts as away: messages behind it are refused, or spooled, in place of waiting. 100ms to 1m."`
	MaxMessageSize int           `yaml:"-"` // bytes; publish.max_message_bytes
	Timeout        time.Duration `yaml:"-"` // publish.timeout
	AutoCreate     bool          `yaml:"-"` // auto_create_topics

	// What only tests change; zero: as follows from the rest.
	SegmentBytes int64         `yaml:"-"` // of the journal
	KeepEvery    time.Duration `yaml:"-"` // marks are written when something has changed
	ReclaimEvery time.Duration `yaml:"-"` // the journal's room is given back
	ParkAbove    int64         `yaml:"-"` // bytes of the journal above which entries are moved out of it
	LookAgain    time.Duration `yaml:"-"` // what was not found is looked for once more
}

func (c Config) segmentBytes() int64 {
	if c.SegmentBytes > 0 {
		return c.SegmentBytes
	}
	return min(max(c.MaxBytes/64, 16<<20), 1<<30)
}

// Values of OnFull and OnAge.
const (
	Refuse       = "refuse"
	RejectOldest = "reject_oldest"
	Reject       = "reject"
)

// DefaultConfig keeps a gigabyte for a day and loses nothing.
func DefaultConfig() Config {
	return Config{
		MaxBytes:       1 << 30,
		MaxAge:         24 * time.Hour,
		OnFull:         Refuse,
		OnAge:          Refuse,
		DrainBytes:     64 << 20,
		Outcomes:       1_000_000,
		RejectBytes:    256 << 20,
		MissingTopic:   time.Minute,
		MetadataWait:   300 * time.Millisecond,
		SendWait:       2 * time.Second,
		MaxMessageSize: 1 << 20,
		Timeout:        10 * time.Second,
	}
}

// Validate says which field is wrong and what would be right.
func (c Config) Validate() error {
	if c.MaxBytes < 64<<20 || c.MaxBytes > 1<<40 {
		return fmt.Errorf("max_bytes: got %d: use %d to %d", c.MaxBytes, 64<<20, int64(1)<<40)
	}
	if c.MaxAge < time.Minute || c.MaxAge > 8760*time.Hour {
		return fmt.Errorf("max_age: got %q: use a duration from 1m to 8760h", c.MaxAge)
	}
	if c.OnFull != Refuse && c.OnFull != RejectOldest {
		return fmt.Errorf("on_full: got %q: use %s or %s", c.OnFull, Refuse, RejectOldest)
	}
	if c.OnAge != Refuse && c.OnAge != Reject {
		return fmt.Errorf("on_age: got %q: use %s or %s", c.OnAge, Refuse, Reject)
	}
	if c.DrainBytes < 64<<10 || c.DrainBytes > 10<<30 {
		return fmt.Errorf("drain_bytes_per_second: got %d: use %d to %d", c.DrainBytes, 64<<10, int64(10)<<30)
	}
	if c.Outcomes < 1000 || c.Outcomes > 100_000_000 {
		return fmt.Errorf("outcomes: got %d: use 1000 to 100000000", c.Outcomes)
	}
	if c.RejectBytes < 1<<20 || c.RejectBytes > 1<<40 {
		return fmt.Errorf("reject_bytes: got %d: use %d to %d", c.RejectBytes, 1<<20, int64(1)<<40)
	}
	for _, d := range []struct {
		name        string
		is, low, up time.Duration
	}{
		{"missing_topic", c.MissingTopic, time.Second, 24 * time.Hour},
		{"metadata_wait", c.MetadataWait, time.Millisecond, 10 * time.Second},
		{"send_wait", c.SendWait, 100 * time.Millisecond, time.Minute},
	} {
		if d.is < d.low || d.is > d.up {
			return fmt.Errorf("%s: got %q: use a duration from %s to %s", d.name, d.is, d.low, d.up)
		}
	}
	return nil
}

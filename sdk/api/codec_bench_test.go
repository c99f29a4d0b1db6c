package api

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// A batch of 500 events as a pull returns it.
func batchOf(size int) Pulled {
	p := Pulled{}
	until := time.Now()
	for i := range 500 {
		var value []byte
		for n := i; len(value) < size; n += 7919 {
			value = fmt.Appendf(value, `{"event":"view","path":"/articles/%d/comments","visitor":"%08x","ms":%d}`, n%5000, n*40503, n%3000)
		}
		p.Messages = append(p.Messages, Message{ID: fmt.Sprint("events/3/", i), Receipt: "AQEAAQOQAwAAAAA", Topic: "events", Partition: 3, Offset: int64(i),
			Value: new(string(value[:size])), Timestamp: 1_780_000_000_000, Attempt: 1, LeaseUntil: &until})
	}
	return p
}

// cpu is the processor time of this process: the clock tells little on a machine
// that does other work.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkEncode(b *testing.B) {
	for _, size := range []int{100, 1024} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			p := batchOf(size)
			var out []byte
			begun := cpu()
			for b.Loop() {
				out, _ = p.AppendJSON(out[:0])
			}
			b.ReportMetric(float64((cpu()-begun).Nanoseconds())/float64(b.N*len(p.Messages)), "cpu-ns/message")
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, size := range []int{100, 1024} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			p := batchOf(size)
			in, _ := p.AppendJSON(nil)
			b.ReportAllocs()
			begun := cpu()
			for b.Loop() {
				var q Pulled
				if err := q.DecodeJSON(in); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((cpu()-begun).Nanoseconds())/float64(b.N*len(p.Messages)), "cpu-ns/message")
		})
	}
}

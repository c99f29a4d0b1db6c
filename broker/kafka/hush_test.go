package kafka

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// Every bad request was a line in the log, so that a client which sent them as fast as it could filled the disk with
// them. Now each kind has one line in ten seconds, which says how many were left out, and what was left out when a
// flood ends is told too.
func TestAFloodOfBadRequestsIsNoFloodOfLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.DebugLevel)
		s := &Server{log: zap.New(core)}
		leftOut := func(e observer.LoggedEntry) (n int64) {
			for _, f := range e.Context {
				if f.Key == "left_out" && f.Type == zapcore.Int64Type {
					n = f.Integer
				}
			}
			return n
		}
		for range 1000 {
			s.complain("bad_request", "closing a connection")
		}
		s.complain("idle", "closing a connection") // another kind
		if got := logs.TakeAll(); len(got) != 2 || leftOut(got[0]) != 0 {
			t.Fatalf("%d lines at once: %v", len(got), got)
		}
		time.Sleep(logEvery)
		s.complain("bad_request", "closing a connection")
		if got := logs.TakeAll(); len(got) != 1 || leftOut(got[0]) != 999 {
			t.Fatalf("after ten seconds: %v", got)
		}
		s.complain("bad_request", "closing a connection")
		s.tellLeftOut(time.Now())
		if got := logs.TakeAll(); len(got) != 0 {
			t.Fatalf("too early: %v", got)
		}
		time.Sleep(logEvery)
		s.tellLeftOut(time.Now())
		s.tellLeftOut(time.Now())
		if got := logs.TakeAll(); len(got) != 1 || leftOut(got[0]) != 1 {
			t.Fatalf("when the flood is over: %v", got)
		}
	})
}

// While descriptors are short, gnet tells of each connection that it cannot accept.
func TestTheEventLoopsSayTheSameSeldom(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	log := sparing(zap.New(core)).Sugar()
	for range 1000 {
		log.Errorf("Accept() failed due to error: %v", "too many open files")
	}
	log.Errorf("something else")
	if n := logs.Len(); n != 6 {
		t.Errorf("%d lines", n)
	}
}

// A client that asks for a transactional producer again and again gets its answer each time, and the log one line.
func TestRefusedTransactionsAreToldSeldom(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	s := &Server{log: zap.New(core), metrics: newMetrics(nil, newBudget(1))}
	req := kmsg.NewPtrInitProducerIDRequest()
	id := "t"
	req.TransactionalID = &id
	for range 100 {
		if resp, err := serveInitProducerID(s, &call{header: header{clientID: "me"}, req: req}); err != nil || resp == nil {
			t.Fatal(err)
		}
	}
	if n := logs.Len(); n != 1 {
		t.Errorf("%d lines", n)
	}
}

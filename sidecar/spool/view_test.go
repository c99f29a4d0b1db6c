package spool

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
)

// A topic that was written to is never forgotten while it is the same one, since
// its sequence numbers would begin anew; an earlier topic is never taken for new.
func TestBeliefOfATopic(t *testing.T) {
	var b belief
	must := func(step, uuid string, partitions int, want change) {
		t.Helper()
		if got := b.learn(uuid, partitions); got != want {
			t.Fatalf("%s: got %d, want %d", step, got, want)
		}
	}
	must("first seen", "a", 1, changeNone)
	must("the same", "a", 1, changeNone)
	must("more partitions", "a", 3, changeCount)
	must("the same then", "a", 3, changeNone)
	b.note([]error{nil, kerr.UnknownTopicID})
	must("its id was refused after it had been written to", "a", 3, changeNone)
	must("made anew", "b", 3, changeTopic)
	must("a broker that is behind", "a", 3, changeBack)
	b.note([]error{kerr.UnknownTopicID})
	must("its id was refused: the client may have asked one that was behind", "b", 3, changeTopic)
	must("once", "b", 3, changeNone)
	must("made anew once more, with fewer partitions", "c", 1, changeTopic)
	must("the second of its ancestors", "b", 3, changeBack)
}

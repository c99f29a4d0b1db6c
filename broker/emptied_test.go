package broker_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sidestream/broker"
	"sidestream/broker/record/recordtest"
)

// A partition's folder that somebody had emptied, to make room or by mistake, was served from offset 0 on without a word:
// consumers' positions were out of range or, later, stood for other records. Now the offsets go on behind what is known
// of them, and operators are told; also when nothing at all is known.
func TestAnEmptiedFolderIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		keep string // suffix of what stays beside the description
		base int64
		want string
	}{
		"the recovery point stays": {"recovery-point", 3, "begins at offset 3"},
		"nothing stays":            {"none", 0, "begins again at offset 0"},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			w.topic("t", 1, nil)
			w.topic("other", 1, nil)
			r := w.dial()
			if got := r.put("t", recordtest.Batch(recordtest.Spec{Values: []string{"a", "b", "c"}})); got.ErrorCode != 0 {
				t.Fatalf("%+v", got)
			}
			_ = r.Close()
			w.close()
			files, err := filepath.Glob(filepath.Join(w.cfg.DataDir, "t-0", "*"))
			if err != nil || len(files) < 3 {
				t.Fatal(files, err)
			}
			for _, f := range files {
				if !strings.HasSuffix(f, "partition.metadata") && !strings.HasSuffix(f, c.keep) {
					if err := os.Remove(f); err != nil {
						t.Fatal(err)
					}
				}
			}
			w.open()
			if a := w.b.Alarms(); len(a) != 1 || !strings.Contains(a[0], "t-0 is damaged") || !strings.Contains(a[0], c.want) {
				t.Errorf("alarms: %q", a)
			}
			w.leadAgain()
			if got := w.dial().put("t", recordtest.Batch(recordtest.Spec{})); got.BaseOffset != c.base || got.LogStartOffset != c.base {
				t.Errorf("%+v, want offset %d", got, c.base)
			}
			w.close()
			w.open() // what is there now is sound
			if a := w.b.Alarms(); len(a) != 0 {
				t.Errorf("alarms at the next start: %q", a)
			}
		})
	}
}

// Where the whole folder is gone, only the epoch under which the partition is to be led tells that there was a log.
func TestAFolderThatIsGoneIsTold(t *testing.T) {
	w := start(t)
	id := w.topic("t", 1, nil)
	if got := w.dial().put("t", recordtest.Batch(recordtest.Spec{Values: []string{"a", "b"}})); got.ErrorCode != 0 {
		t.Fatalf("%+v", got)
	}
	w.close()
	noError(t, os.RemoveAll(filepath.Join(w.cfg.DataDir, "t-0")))
	w.open()
	noError(t, w.b.Lead(broker.Lead{Topic: "t", ID: id, Count: 1, Epoch: 2, Replicas: []int32{selfID}, ISR: []int32{selfID}}))
	if a := w.b.Alarms(); len(a) != 1 || !strings.Contains(a[0], "t-0 is damaged") || !strings.Contains(a[0], "begins again at offset 0") {
		t.Errorf("alarms: %q", a)
	}
	// A topic that is led for the first time is no loss.
	w.topic("fresh", 1, nil)
	if a := w.b.Alarms(); len(a) != 1 {
		t.Errorf("alarms: %q", a)
	}
}

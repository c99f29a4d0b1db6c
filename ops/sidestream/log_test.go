package main

import "testing"

// A batch that compaction left without records has the timestamp -1, which was
// once shown as the last millisecond of 1969.
func TestTimeText(t *testing.T) {
	for millis, want := range map[int64]string{
		-1: "none", 0: "1970-01-01T00:00:00.000Z", 1795981125229: "2026-11-29T19:38:45.229Z",
	} {
		if got := timeText(millis); got != want {
			t.Errorf("%d: %s, want %s", millis, got, want)
		}
	}
}

package api

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// Batches of tiny lines are small as bodies and large as messages: 150 of
// 64 KB took half a gigabyte while brokers did not answer. Their messages are
// counted, and all is given back.
func TestMessagesOfBatchesAreCounted(t *testing.T) {
	const memory, lines = 32 << 20, 32_000
	const fit = memory / (lines*messageCost - firstBody)
	for name, c := range map[string]struct{ path, body string }{
		"lines":   {"/topics/t/batch?lines", strings.Repeat("x\n", lines)},
		"records": {"/topics/t/batch", strings.Repeat("{}\n", lines)},
		"array":   {"/topics/t/batch", "[{}" + strings.Repeat(",{}", lines-1) + "]"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, func(o *Options) { o.MaxBodyMemory = memory })
			var inside atomic.Int32
			release := make(chan struct{})
			s.sink.forget = true
			s.sink.before = func([]publish.Message) *api.Error {
				inside.Add(1)
				<-release
				return nil
			}
			var wg sync.WaitGroup
			var refused atomic.Int32
			statuses := make(chan int, 3*fit)
			for range cap(statuses) {
				wg.Go(func() {
					status, _ := s.post(c.path, strings.NewReader(c.body))
					if status == 429 && refused.Add(1) == int32(2*fit) {
						close(release)
					}
					statuses <- status
				})
			}
			late := time.AfterFunc(30*time.Second, func() {
				if refused.Load() < int32(2*fit) {
					t.Errorf("%d batches are in memory, want at most %d", inside.Load(), fit)
					close(release)
				}
			})
			wg.Wait()
			late.Stop()
			if n := inside.Load(); n > int32(fit) || n == 0 {
				t.Errorf("%d batches were in memory, want 1 to %d", n, fit)
			}
			close(statuses)
			for status := range statuses {
				if status != 200 && status != 429 {
					t.Errorf("status %d", status)
				}
			}
			if !s.memory.free.TryAcquire(memory) {
				t.Error("not all memory was given back")
			}
		})
	}
}

// An upload whose client takes no answers holds some pieces of some lines, all of
// it counted; when they are taken it goes on to its end.
func TestMessagesOfUploadsAreCounted(t *testing.T) {
	const memory, lines = 2 << 20, 200_000
	s := serve(t, func(o *Options) { o.MaxBodyMemory = memory })
	var sent atomic.Int64
	s.sink.forget = true
	s.sink.before = func(ms []publish.Message) *api.Error {
		sent.Add(int64(len(ms)))
		return nil
	}
	client, sock := net.Pipe()
	defer func() { _, _ = client.Close(), sock.Close() }()
	u := &upload{
		s: s.Server, topic: "t", lines: true, headers: func([]publish.Message) {}, sock: sock, stopDrain: func() bool { return true },
		from: strings.NewReader(strings.Repeat("x\n", lines)), alive: func() {},
		slots: make(chan struct{}, piecesAtOnce), pieces: make(chan *piece, piecesAtOnce),
	}
	u.ctx, u.cancel = context.WithCancel(context.Background())
	if err := u.begin(); err != nil {
		t.Fatal(err)
	}
	if _, err := u.Read(make([]byte, 1)); err != nil { // begins to read the rest
		t.Fatal(err)
	}
	time.Sleep(1500 * time.Millisecond) // longer than a body waits for memory
	if n := sent.Load(); n > piecesAtOnce*pieceLines || n == 0 {
		t.Errorf("%d messages were taken though no answer was", n)
	}
	var answers bytes.Buffer
	if _, err := io.Copy(&answers, struct{ io.Reader }{u}); err != nil {
		t.Fatal(err)
	}
	if end := fmt.Sprintf(`"written":%d`, lines); !strings.Contains(answers.String()[answers.Len()-200:], end) {
		t.Errorf("it ended with %s", answers.String()[answers.Len()-200:])
	}
	if err := u.Close(); err != nil {
		t.Fatal(err)
	}
	if !s.memory.free.TryAcquire(memory) {
		t.Error("not all memory was given back")
	}
}

func TestCutLine(t *testing.T) {
	for _, c := range []struct {
		text  string
		lines bool
		want  string
	}{
		{"", true, `0 "" ""`},
		{"a", true, `0 "a" ""`},
		{"\n\na\nb\n", true, `2 "a" "b\n"`},
		{"\r\na\n", true, `0 "\r" "a\n"`},
		{" \n\r\n\t\v\f\n a \n\nb", false, `3 "a " "\nb"`},
		{"\n \n", false, `2 "" ""`},
		{"\n  ", false, `1 "" ""`},
		{"\n  ", true, `1 "  " ""`},
	} {
		blank, line, rest := cutLine([]byte(c.text), c.lines)
		if got := fmt.Sprintf("%d %q %q", blank, line, rest); got != c.want {
			t.Errorf("%q, lines %v: %s, want %s", c.text, c.lines, got, c.want)
		}
	}
	if size, n := cutLines([]byte("\na\n\nb\nc\n"), true, 2); size != 6 || n != 2 {
		t.Errorf("%d bytes of %d lines", size, n)
	}
}

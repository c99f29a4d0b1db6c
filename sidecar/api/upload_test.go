package api

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"

	"sidestream/sidecar/publish"
)

// parts gives bytes in parts of any length, sometimes the last with the end.
type parts struct {
	b   []byte
	rnd *rand.Rand
}

func (p *parts) Read(to []byte) (int, error) {
	n := min(len(to), len(p.b), 1+p.rnd.IntN(1+p.rnd.IntN(600_000)))
	copy(to, p.b[:n])
	p.b = p.b[n:]
	if len(p.b) == 0 && (n == 0 || p.rnd.IntN(2) == 0) {
		return n, io.EOF
	}
	return n, nil
}

// However a body arrives, its lines are sent whole, once and in order, and
// answered so.
func TestUploadHoweverItArrives(t *testing.T) {
	s := serve(t, func(o *Options) { o.MaxRequestSize, o.MaxBodyMemory = 2<<20, 16<<20 })
	_, sock := net.Pipe()
	defer sock.Close()
	for seed := range uint64(12) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		var body bytes.Buffer
		var want, lines []string
		count, length := 1+rnd.IntN(3000), 300
		if seed%3 == 0 { // more of them than a piece has
			count, length = 30_000, 3
		}
		for i := range count {
			n := rnd.IntN(length)
			switch rnd.IntN(200) {
			case 0:
				n = 0
			case 1:
				n = rnd.IntN(700_000 * length / 300)
			}
			line := strings.Repeat(string(rune('a'+i%26)), n)
			if n > 0 {
				want, lines = append(want, line), append(lines, fmt.Sprint(i+1))
			}
			body.WriteString(line)
			body.WriteByte('\n')
		}
		if b := body.Bytes(); rnd.IntN(2) == 0 {
			body.Truncate(len(b) - 1)
		}
		before := len(s.sink.taken())
		u := &upload{
			s: s.Server, topic: "t", lines: true, headers: func([]publish.Message) {}, sock: sock, stopDrain: func() bool { return true },
			from: &parts{body.Bytes(), rnd}, alive: func() {},
			slots: make(chan struct{}, piecesAtOnce), pieces: make(chan *piece, piecesAtOnce),
		}
		u.ctx, u.cancel = context.WithCancel(context.Background())
		if err := u.begin(); err != nil {
			if len(want) > 0 {
				t.Errorf("seed %d: %v", seed, err)
			}
			_ = u.Close()
			continue
		}
		var answers bytes.Buffer
		if _, err := io.Copy(&answers, struct{ io.Reader }{u}); err != nil {
			t.Fatal(err)
		}
		if err := u.Close(); err != nil {
			t.Fatal(err)
		}
		got, end := told(t, answers.String())
		var numbers []string
		for _, l := range got {
			numbers = append(numbers, fmt.Sprint(l.Line))
		}
		if fmt.Sprint(numbers) != fmt.Sprint(lines) || end.Written != int64(len(want)) || end.Error != nil {
			t.Errorf("seed %d: %d answers of %d, %+v", seed, len(got), len(want), end)
		}
		sent := s.sink.taken()[before:]
		if len(sent) != len(want) {
			t.Fatalf("seed %d: %d messages of %d", seed, len(sent), len(want))
		}
		for i := range want {
			if string(sent[i].Value) != want[i] {
				t.Fatalf("seed %d: message %d is %.40q, want %.40q", seed, i, sent[i].Value, want[i])
			}
		}
	}
	if !s.memory.free.TryAcquire(16 << 20) {
		t.Error("memory was not given back")
	}
}

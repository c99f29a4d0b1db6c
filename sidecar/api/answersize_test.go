package api

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"sidestream/sdk/api"
	"sidestream/sidecar/consume"
)

// A pull of one message of 63 MiB of zeros, which came as 2 kB, was 396 MB of JSON:
// four of them at once ended a sidecar with 4 GB. The size is known before it is
// made, and never less than it is.
func TestSizeInJSON(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	alphabets := []string{"\x00\x01\x1f", "plain", "\"\\\n\t", "\u2028\u2029", "中文“”é", "\x7f\x00a"}
	for range 60 {
		var p api.Pulled
		for range 1 + rng.IntN(4) {
			runes := []rune(alphabets[rng.IntN(len(alphabets))])
			var b strings.Builder
			for b.Len() < 300<<10+rng.IntN(300<<10) {
				b.WriteRune(runes[rng.IntN(len(runes))])
			}
			m := api.Message{ID: "orders/3/812", Receipt: "AQEAAQEAZCHvVA", Topic: "orders", Value: new(b.String())}
			if rng.IntN(2) == 0 {
				m.Key = new(b.String()[:rng.IntN(1000)&^3])
			}
			m.Headers = []api.HeaderPair{{Name: "h", Value: new(strings.Repeat("\x00", rng.IntN(100)))}}
			p.Messages = append(p.Messages, m)
		}
		text, err := p.AppendJSON(nil)
		if err != nil {
			t.Fatal(err)
		}
		if n := sizeInJSON(p.Messages); n < int64(len(text)) && n != 0 || n == 0 && len(text) > 6*closeLook+4096 {
			t.Fatalf("%d bytes are said for %d", n, len(text))
		}
	}
}

func TestMessagesWithoutRoomGoBack(t *testing.T) {
	const most = 1 << 20
	s := serve(t, func(o *Options) { o.MaxBodyMemory = 2 * most })
	d := &consume.Delivery{Pulled: api.Pulled{Messages: []api.Message{{Value: new(strings.Repeat("\x00", closeLook))}}}}
	c := &call{RequestCtx: &fasthttp.RequestCtx{}}
	release, err := s.roomToWrite(t.Context(), c, d)
	if err != nil || s.answers.held() < 6*closeLook {
		t.Fatalf("alone: %v, %d bytes are held", err, s.answers.held())
	}
	back := false
	d.Return = func() { back = true }
	if _, err := s.roomToWrite(t.Context(), c, d); !errors.Is(err, &api.Error{Code: api.CodeRateLimited}) || !back {
		t.Errorf("the second: %v, given back %v", err, back)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.roomToStream(ctx, d.Messages); err == nil {
		t.Error("a stream that has ended got room")
	}
	release()
	if release, err = s.roomToStream(t.Context(), d.Messages); err != nil {
		t.Error(err)
	} else {
		release()
	}
	if s.answers.held() != 0 {
		t.Errorf("%d bytes are held at the end", s.answers.held())
	}
}

package unpack_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"sidestream/broker/record"
	"sidestream/broker/record/recordtest"
	"sidestream/broker/record/unpack"
)

var u = unpack.Unpacker{Limit: 4 << 20}

// text compresses as text does.
func text(n int) []byte {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	b := make([]byte, n)
	for i := range b {
		b[i] = "etaoin shrdlu\n"[r.IntN(14)]
	}
	return b
}

// What was packed comes out, for each codec and in each size, and the claim has
// its size and no more.
func TestUnpackGivesWhatWasPacked(t *testing.T) {
	for _, f := range recordtest.Forms {
		for _, n := range []int{0, 1, 100, 40_000, 300_000, 2 << 20, 2<<20 + 1, 4 << 20} {
			for _, in := range [][]byte{make([]byte, n), append(text(min(n, 150_000)), make([]byte, n-min(n, 150_000))...)} {
				m := unpack.NewMemory(2 * u.Limit)
				c := m.Claim()
				packed := f.Pack(in)
				out, err := u.Unpack(t.Context(), c, f.Codec, packed)
				if err != nil || !bytes.Equal(out, in) {
					t.Fatalf("%s of %d bytes: %d bytes, %v", f.Name, n, len(out), err)
				}
				if held := int(c.Held()); held < n || held > n+n/3+1 {
					t.Errorf("%s of %d bytes: the claim has %d", f.Name, n, held)
				}
				c.Release()
				if err := u.Check(f.Codec, packed); err != nil {
					t.Errorf("%s of %d bytes: %v", f.Name, n, err)
				}
				s, err := unpack.SizeOf(f.Codec, packed)
				if err != nil || s.Least > int64(n) || s.Most < int64(n) || s.Declared >= 0 && s.Declared != int64(n) {
					t.Errorf("%s of %d bytes: %+v, %v", f.Name, n, s, err)
				}
			}
		}
	}
}

// A megabyte that unpacks to a gigabyte took a gigabyte, and more while it grew.
// Now it is refused, in time and in memory that go with the limit.
func TestBombsAreRefusedInBoundedMemory(t *testing.T) {
	for _, f := range recordtest.Forms {
		size := 64 << 20
		if f.Codec == record.Snappy {
			size = 32 << 20 // all that its ratio makes of a batch
		}
		body := f.Bomb(1, size)[record.HeaderSize:]
		m := unpack.NewMemory(2 * u.Limit)
		c := m.Claim()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		begun := time.Now()
		_, err := u.Unpack(t.Context(), c, f.Codec, body)
		took := time.Since(begun)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, record.ErrTooLarge) {
			t.Errorf("%s: %v", f.Name, err)
		}
		if c.Held() != 0 {
			t.Errorf("%s: the claim still has %d bytes", f.Name, c.Held())
		}
		// lz4 has blocks of 4 MiB, and two of them.
		if got := after.TotalAlloc - before.TotalAlloc; got > uint64(5*u.Limit) {
			t.Errorf("%s: %d bytes were allocated", f.Name, got)
		}
		if took > 5*time.Second {
			t.Errorf("%s: took %s", f.Name, took)
		}
		if err := u.Check(f.Codec, body); !errors.Is(err, record.ErrTooLarge) {
			t.Errorf("%s: Check says %v", f.Name, err)
		}
	}
}

// One byte over is over.
func TestTheLimitIsExact(t *testing.T) {
	for _, f := range recordtest.Forms {
		for _, in := range [][]byte{make([]byte, u.Limit+1), append(text(100_000), make([]byte, u.Limit+1-100_000)...)} {
			packed := f.Pack(in)
			if _, err := u.Unpack(t.Context(), nil, f.Codec, packed); !errors.Is(err, record.ErrTooLarge) {
				t.Errorf("%s: %v", f.Name, err)
			}
			if err := u.Check(f.Codec, packed); !errors.Is(err, record.ErrTooLarge) {
				t.Errorf("%s: Check says %v", f.Name, err)
			}
		}
	}
}

// The size at the end of gzip is of the last member, modulo 4 GiB: whoever
// believed it would be told of 5 bytes by a bomb with 5 bytes behind it.
func TestGzipWhoseSizeLies(t *testing.T) {
	gzip := recordtest.Forms[0]
	bomb := append(gzip.Pack(make([]byte, 64<<20)), gzip.Pack([]byte("small"))...)
	if _, err := u.Unpack(t.Context(), nil, record.Gzip, bomb); !errors.Is(err, record.ErrTooLarge) {
		t.Errorf("two members: %v", err)
	}
	two := append(gzip.Pack(append(text(100_000), make([]byte, 3<<20-100_000)...)), gzip.Pack([]byte("small"))...)
	if out, err := u.Unpack(t.Context(), nil, record.Gzip, two); err != nil || len(out) != 3<<20+5 {
		t.Errorf("two members within the limit: %d bytes, %v", len(out), err)
	}
	if !u.Reads(record.Gzip, bomb) && u.Check(record.Gzip, bomb) == nil && len(bomb) > 80<<10 {
		t.Error("it was believed")
	}
	large := gzip.Pack(make([]byte, 3<<20))
	binary.LittleEndian.PutUint32(large[len(large)-4:], 7)
	if _, err := u.Unpack(t.Context(), nil, record.Gzip, large); !errors.Is(err, record.ErrInvalid) {
		t.Errorf("a wrong size: %v", err)
	}
}

// Garbage and bodies that are cut off are no batches, and no bombs.
func TestWhatCannotBeUnpacked(t *testing.T) {
	for _, f := range recordtest.Forms {
		packed := f.Pack(text(200_000))
		for name, b := range map[string][]byte{
			"garbage": []byte("no such thing, nor anything like it"), "cut off": packed[:len(packed)/2], "one byte": packed[:1],
			"its beginning": packed[:min(len(packed), 20)],
		} {
			c := unpack.NewMemory(u.Limit * 2).Claim()
			if out, err := u.Unpack(t.Context(), c, f.Codec, b); !errors.Is(err, record.ErrInvalid) && !errors.Is(err, record.ErrTooLarge) {
				t.Errorf("%s, %s: %d bytes, %v", f.Name, name, len(out), err)
			}
			if c.Held() != 0 {
				t.Errorf("%s, %s: the claim still has %d bytes", f.Name, name, c.Held())
			}
		}
	}
	if out, err := u.Unpack(t.Context(), nil, record.None, []byte("as it is")); string(out) != "as it is" || err != nil {
		t.Errorf("%q, %v", out, err)
	}
}

// Who has nothing waits for its turn; who has some is told, since two of them
// would wait for each other for ever.
func TestClaimsDoNotWaitForEachOther(t *testing.T) {
	m := unpack.NewMemory(100)
	a, b := m.Claim(), m.Claim()
	if err := a.Take(t.Context(), 60); err != nil {
		t.Fatal(err)
	}
	if err := a.Take(t.Context(), 60); !errors.Is(err, unpack.ErrNoRoom) {
		t.Errorf("%v", err)
	}
	if err := b.Take(t.Context(), 101); !errors.Is(err, record.ErrTooLarge) {
		t.Errorf("more than there is: %v", err)
	}
	over, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := b.Take(over, 60); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	done := make(chan error)
	go func() { done <- b.Take(t.Context(), 60) }()
	a.Release()
	if err := <-done; err != nil || b.Held() != 60 {
		t.Errorf("%v, %d", err, b.Held())
	}
	b.Release()
}

// Whatever the bytes are, the limit holds, and the claim is even.
func FuzzUnpack(f *testing.F) {
	for _, form := range recordtest.Forms {
		f.Add(byte(form.Codec), form.Pack(text(5000)))
		f.Add(byte(form.Codec), form.Pack(make([]byte, 200_000)))
	}
	f.Fuzz(func(t *testing.T, codec byte, b []byte) {
		u := unpack.Unpacker{Limit: 100_000}
		c := unpack.NewMemory(2 * u.Limit).Claim()
		out, err := u.Unpack(t.Context(), c, record.Codec(codec), b)
		if err != nil && c.Held() != 0 || err == nil && codec != 0 && (int64(len(out)) > u.Limit || c.Held() < int64(len(out))) {
			t.Fatalf("%d bytes, %v, the claim has %d", len(out), err, c.Held())
		}
		if s, serr := unpack.SizeOf(record.Codec(codec), b); err == nil && codec != 0 && len(b) > 0 &&
			(serr != nil || s.Most < int64(len(out)) || s.Least > int64(len(out)) && s.Declared != 0) {
			t.Fatalf("%d bytes of %+v, %v", len(out), s, serr)
		}
	})
}

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sidestream/sdk/api"
)

func messages(from, to int) (ms []api.Message) {
	for i := from; i < to; i++ {
		ms = append(ms, api.Message{ID: fmt.Sprint("t/0/", i), Key: new("k"), Value: new("v")})
	}
	return ms
}

// Messages that come again are in the file once, also after a crash in the
// middle of a write.
func TestEachMessageIsInTheFileOnce(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.ndjson")
	a, err := open(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.write(messages(0, 5)); err != nil {
		t.Fatal(err)
	}
	if err := a.write(messages(3, 8)); err != nil {
		t.Fatal(err)
	}
	a.close()
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, whole[:len(whole)-10], 0o644); err != nil {
		t.Fatal(err)
	}
	if a, err = open(name); err != nil {
		t.Fatal(err)
	}
	defer a.close()
	if err := a.write(messages(5, 8)); err != nil {
		t.Fatal(err)
	}
	again, err := os.ReadFile(name)
	if err != nil || !bytes.Equal(again, whole) || bytes.Count(again, []byte("\n")) != 8 {
		t.Errorf("%v:\n%s", err, again)
	}
}

func TestAForeignFileIsLeftAlone(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.ndjson")
	if err := os.WriteFile(name, []byte("not ours\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := open(name); err == nil {
		t.Error("it was taken for an archive")
	}
}

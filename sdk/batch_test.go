package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sidestream/sdk"
	"sidestream/sdk/api"
)

func TestBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeGroup("key", 2)
		var sizes []int
		var order []string
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			for i := range 25 {
				f.put(i%2, fmt.Sprint("k", i%5), "v")
				time.Sleep(10 * time.Millisecond)
			}
		}()
		failed := false
		o := sdk.ConsumeOptions{BatchMax: 10, BatchWait: time.Second}
		err := f.client(t).ConsumeBatch(ctx, "g", "t", o, func(_ context.Context, messages []api.Message) error {
			sizes = append(sizes, len(messages))
			errs := make(sdk.BatchError, len(messages))
			for i, m := range messages {
				if m.ID == "t/0/6" && !failed {
					failed = true
					errs[i] = errors.New("not this one")
					continue
				}
				order = append(order, m.ID)
			}
			if len(order) == 25 {
				cancel()
			}
			if slices.IndexFunc(errs, func(err error) bool { return err != nil }) >= 0 {
				return errs
			}
			return nil
		})
		if err != nil || f.left() != 0 || len(order) != 25 {
			t.Fatalf("%v, %d left, handled %v in batches of %v", err, f.left(), order, sizes)
		}
		if !slices.Equal(sizes[:2], []int{10, 10}) {
			t.Errorf("batches of %v", sizes)
		}
	})
}

func TestBatchErrorText(t *testing.T) {
	cause := errors.New("no room")
	err := error(sdk.BatchError{nil, cause, errors.New("other"), nil})
	if !errors.Is(err, cause) || !strings.Contains(err.Error(), "2 of 4 messages failed, the first because: no room") {
		t.Errorf("%v", err)
	}
	if e := sdk.Later(time.Second, cause); !errors.Is(e, cause) || e.Error() != "no room" {
		t.Errorf("%v", e)
	}
}

package offsets

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if path := os.Getenv("OFFSETS_TEST_VICTIM"); path != "" {
		victim(path)
		return
	}
	goleak.VerifyTestMain(m)
}

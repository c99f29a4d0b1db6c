package api

import (
	"testing"

	"go.uber.org/goleak"
)

// Two goroutines of fasthttp sleep out their time after the server has ended:
// the one that trims idle workers (10 s) and the clock of the Date header.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
}

package sidecar

import (
	"errors"
	"net"
	"strings"
	"testing"

	"go.uber.org/zap"
)

// broken is a listener that does not work.
type broken struct{ net.Listener }

var errBroken = errors.New("the listener is broken")

func (b broken) Accept() (net.Conn, error) { return nil, errBroken }

// A sidecar that cannot serve any more says so and stops, to be started again:
// it does not live on with nobody able to reach it.
func TestASidecarWhoseListenerFailsStops(t *testing.T) {
	cfg := DefaultConfig()
	cfg.DataDir = t.TempDir()
	cfg.Kafka.Bootstrap = newCluster(t).ListenAddrs()
	s, err := New(cfg, newStore(t), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	ln, err := listenTCP("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.open(ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	err = s.serve(t.Context(), []net.Listener{broken{ln}})
	if !errors.Is(err, errBroken) || !strings.Contains(err.Error(), ln.Addr().String()) {
		t.Errorf("it ended with %v", err)
	}
}

package agent

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// An alarm whose text counts seconds was a new line in the log each second.
func TestAnAlarmIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		a := newAlarms(zap.New(core), prometheus.NewGauge(prometheus.GaugeOpts{Name: "alarms"}))
		lines := func() string {
			var texts []string
			for _, e := range logs.TakeAll() {
				texts = append(texts, e.Message+": "+e.ContextMap()["alarm"].(string))
			}
			return fmt.Sprintf("%q", texts)
		}
		for i := range 59 {
			a.put(alarmStore, fmt.Sprintf("away for %d s", i))
			time.Sleep(time.Second)
		}
		if got, want := lines(), `["alarm: away for 0 s"]`; got != want {
			t.Errorf("logged %s; want %s", got, want)
		}
		if got := fmt.Sprint(a.list()); got != "[away for 58 s]" {
			t.Errorf("the list has %s", got)
		}
		time.Sleep(time.Second)
		a.put(alarmStore, "away for 60 s")
		a.put(alarmStore, "away for 60 s")
		a.put(alarmID, "")
		a.put(alarmStore, "")
		a.put(alarmStore, "")
		a.put(alarmStore, "away for 60 s") // raised anew
		if got, want := lines(), `["alarm: away for 60 s" "alarm cleared: away for 60 s" "alarm: away for 60 s"]`; got != want {
			t.Errorf("logged %s; want %s", got, want)
		}
	})
}

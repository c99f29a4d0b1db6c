package api

import "sidestream/sdk/api"

// Options that several routes take.
var (
	publishOptions    = []string{"ack", "timeout"}
	streamOptionNames = []string{"window", "lease", "from", "ack", "heartbeat"}
	none              []string
)

// routes is the whole API. {name} stands for one path element; options are the
// query options that the route takes, any other is refused. draining says that
// it is refused while the sidecar drains.
func (s *Server) routes() []route {
	return []route{
		{"POST", "/topics/{topic}", with(publishOptions, "key", "key64", "key_field", "partition", "ts"), s.publish, refusedInDrain},
		{"POST", "/topics/{topic}/batch", with(publishOptions, "lines", "key_field"), s.publishBatch, refusedInDrain},
		{"GET", "/topics", none, s.listTopics, always},
		{"GET", "/topics/{topic}", none, s.getTopic, always},
		{"PUT", "/topics/{topic}", none, s.putTopic, always},
		{"GET", "/topics/{topic}/partitions/{partition}/messages", []string{"offset", "ts", "max"}, s.peek, always},

		{"GET", "/spool", none, s.getSpool, always},
		{"GET", "/spool/{id}", none, s.getSpooled, always},

		{"GET", "/groups", none, s.listGroups, always},
		{"GET", "/groups/{group}", none, s.getGroup, always},
		{"PUT", "/groups/{group}", none, s.putGroup, always},
		{"DELETE", "/groups/{group}", none, s.deleteGroup, always},
		{"POST", "/groups/{group}/topics/{topic}/pull", []string{"max", "wait", "lease", "from", "raw", "ack", "attempt_token"}, s.pull, always},
		{"GET", "/groups/{group}/topics/{topic}/stream", streamOptionNames, s.stream, refusedInDrain},
		{"POST", "/groups/{group}/topics/{topic}/stream", streamOptionNames, s.stream, refusedInDrain},
		{"POST", "/groups/{group}/topics/{topic}/ack", none, s.receipts(Consumer.Ack), always},
		{"POST", "/groups/{group}/topics/{topic}/nack", none, s.receipts(Consumer.Nack), always},
		{"POST", "/groups/{group}/topics/{topic}/extend", none, s.receipts(Consumer.Extend), always},
		{"GET", "/groups/{group}/topics/{topic}/dead", []string{"max", "after", "reason", "all", "dead"}, s.getDead, always},
		{"POST", "/groups/{group}/topics/{topic}/dead/redrive", none, s.redrive, refusedInDrain},
		{"GET", "/groups/{group}/topics/{topic}/offsets", none, s.getOffsets, always},
		{"PUT", "/groups/{group}/topics/{topic}/offsets", none, s.putOffsets, always},

		{"POST", "/groups/{group}/pause", none, s.pauseOrResume(Consumer.Pause), always},
		{"POST", "/groups/{group}/resume", none, s.pauseOrResume(Consumer.Resume), always},
		{"POST", "/groups/{group}/topics/{topic}/pause", none, s.pauseOrResume(Consumer.Pause), always},
		{"POST", "/groups/{group}/topics/{topic}/resume", none, s.pauseOrResume(Consumer.Resume), always},

		{"GET", "/", none, s.about, always},
		{"GET", "/healthz", none, s.healthz, always},
		{"GET", "/readyz", none, s.readyz, always},
		{"GET", "/status", none, s.status, always},
		{"GET", "/metrics", []string{"name[]"}, s.metricsPage, always},
		{"GET", "/openapi.json", none, s.getOpenAPI, always},
		{"POST", "/drain", none, s.drain, always},
	}
}

func with(options []string, more ...string) []string {
	return append(append([]string(nil), options...), more...)
}

const (
	always         = false
	refusedInDrain = true
)

// route is one line of the table.
type route struct {
	method, pattern string
	options         []string
	handle          func(*call) error // the error is an *api.Error, or becomes an internal one
	refusedInDrain  bool
}

// apiError is what handlers return.
func apiError(code api.Code, message string) *api.Error { return api.NewError(code, message) }

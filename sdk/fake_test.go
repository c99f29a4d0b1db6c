package sdk_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"

	"sidestream/sdk/api"
)

// fake is a sidecar with one partition a topic and one cursor, enough to hold
// the client against. It answers requests without a network through
// RoundTrip, so that tests may run in a synctest bubble.
type fake struct {
	mux *http.ServeMux

	mu     sync.Mutex
	values map[string][]string // guarded by mu, by topic
	low    map[string]int      // guarded by mu, by topic: acknowledged below
	out    map[string]bool     // guarded by mu: topics with messages handed out
	calls  []string            // guarded by mu: method, path and query in order
	fail   []func(http.ResponseWriter)
}

func newFake() *fake {
	f := &fake{mux: http.NewServeMux(), values: map[string][]string{}, low: map[string]int{}, out: map[string]bool{}}
	f.mux.HandleFunc("POST /topics/{t}", f.publish)
	f.mux.HandleFunc("POST /topics/{t}/batch", f.batch)
	f.mux.HandleFunc("PUT /topics/{t}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, 200, api.Topic{Topic: r.PathValue("t"), Partitions: make([]api.TopicPartition, 4)})
	})
	f.mux.HandleFunc("POST /groups/{g}/topics/{t}/pull", f.pull)
	f.mux.HandleFunc("POST /groups/{g}/topics/{t}/{verb}", f.receipts)
	f.mux.HandleFunc("PUT /groups/{g}/topics/{t}/offsets", func(w http.ResponseWriter, r *http.Request) {
		f.low[r.PathValue("t")] = 0
		answer(w, 200, api.Sought{SeekEpoch: 1, Offsets: map[int32]int64{0: 0}})
	})
	return f
}

// serve starts the fake on a real port, for the examples.
func (f *fake) serve() (address string, stop func()) {
	s := httptest.NewServer(f)
	return s.URL, s.Close
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, r.Method+" "+r.URL.RequestURI())
	if len(f.fail) > 0 {
		first := f.fail[0]
		f.fail = f.fail[1:]
		first(w)
		return
	}
	f.mux.ServeHTTP(w, r)
}

func (f *fake) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	if wait, err := time.ParseDuration(r.URL.Query().Get("wait")); err == nil && bytes.Contains(w.Body.Bytes(), []byte(`"at_end"`)) {
		select { // a long poll that found nothing
		case <-time.After(wait):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	return w.Result(), nil
}

func (f *fake) called(part string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		if strings.Contains(c, part) {
			n++
		}
	}
	return n
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", api.ContentTypeJSON)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func refuse(code api.Code, retryAfter string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		if retryAfter != "" {
			w.Header().Set(api.HeaderRetryAfter, retryAfter)
		}
		answer(w, code.Status(), api.ErrorBody{Error: api.NewError(code, "as the test wants")})
	}
}

func (f *fake) publish(w http.ResponseWriter, r *http.Request) {
	t := r.PathValue("t")
	if t == "nowhere" {
		refuse(api.CodeTopicNotFound, "")(w)
		return
	}
	body, _ := io.ReadAll(r.Body)
	f.values[t] = append(f.values[t], string(body))
	answer(w, 200, api.Published{Topic: t, Offset: int64(len(f.values[t]) - 1)})
}

func (f *fake) batch(w http.ResponseWriter, r *http.Request) {
	t := r.PathValue("t")
	result := api.BatchPublished{Topic: t}
	for scan := bufio.NewScanner(r.Body); scan.Scan(); {
		value := scan.Text()
		if r.URL.Query().Get("lines") == "" {
			var record api.Record
			if err := json.Unmarshal(scan.Bytes(), &record); err != nil {
				refuse(api.CodeBadRecord, "")(w)
				return
			}
			_ = json.Unmarshal(record.Value, &value)
		}
		f.values[t] = append(f.values[t], value)
		result.Results = append(result.Results, api.BatchResult{Offset: int64(len(f.values[t]) - 1)})
		result.Written++
	}
	answer(w, 200, result)
}

func (f *fake) pull(w http.ResponseWriter, r *http.Request) {
	t := r.PathValue("t")
	pulled := api.Pulled{Messages: []api.Message{}}
	for i := f.low[t]; i < len(f.values[t]) && !f.out[t]; i++ {
		value, until := f.values[t][i], time.Now().Add(30*time.Second)
		pulled.Messages = append(pulled.Messages, api.Message{ID: fmt.Sprintf("%s/0/%d", t, i), Topic: t, Offset: int64(i),
			Receipt: fmt.Sprint("r", i), Value: &value, Attempt: 1, LeaseUntil: &until})
	}
	if len(pulled.Messages) == 0 {
		reason := api.ReasonAtEnd
		pulled.Reason = &reason
	} else {
		f.out[t] = true
	}
	answer(w, 200, pulled)
}

func (f *fake) receipts(w http.ResponseWriter, r *http.Request) {
	t, verb := r.PathValue("t"), r.PathValue("verb")
	var body api.Receipts
	_ = json.NewDecoder(r.Body).Decode(&body)
	slices.Sort(body.Receipts)
	response := api.ReceiptResponse{}
	for _, receipt := range body.Receipts {
		var n int
		if _, err := fmt.Sscanf(receipt, "r%d", &n); err != nil {
			response.Failed++
			response.Results = append(response.Results, api.ReceiptResult{Receipt: receipt, Error: api.NewError(api.CodeLeaseLost, "no such lease")})
			continue
		}
		if verb == "ack" {
			f.low[t] = max(f.low[t], n+1)
		}
		response.OK++
		response.Results = append(response.Results, api.ReceiptResult{Receipt: receipt})
	}
	if verb == "nack" || f.low[t] == len(f.values[t]) {
		f.out[t] = false
	}
	status := http.StatusOK
	if response.Failed > 0 && response.OK > 0 {
		status = http.StatusMultiStatus
	} else if response.Failed > 0 {
		status = http.StatusConflict
	}
	answer(w, status, response)
}

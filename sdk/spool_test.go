package sdk_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"sidestream/sdk"
	"sidestream/sdk/api"
)

func TestSpool(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /topics/t", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("ack") != "spool" && r.Header.Get(api.HeaderPrefer) != "respond-async" {
			t.Errorf("%s %v", r.URL, r.Header)
		}
		w.WriteHeader(http.StatusAccepted)
		_ = json.NewEncoder(w).Encode(api.Published{Topic: "t", Offset: -1, SpoolID: "n-1"})
	})
	mux.HandleFunc("GET /spool/n-1", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(api.SpoolEvent{ID: "n-1", State: api.SpoolWritten, Offset: 7})
	})
	mux.HandleFunc("GET /spool/n-2", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(api.ErrorBody{Error: api.NewError(api.CodeNotFound, "no")})
	})
	mux.HandleFunc("GET /spool", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(api.SpoolStatus{Pending: 3})
	})
	s := httptest.NewServer(mux)
	defer s.Close()
	c, err := sdk.New(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, o := range []sdk.PublishOption{sdk.AckSpool(), sdk.OrSpool()} {
		if p, err := c.Publish(t.Context(), "t", sdk.Message{Value: []byte("v")}, o); err != nil || p.SpoolID != "n-1" || p.Offset != -1 {
			t.Errorf("%+v, %v", p, err)
		}
	}
	if ev, err := c.Spooled(t.Context(), "n-1"); err != nil || ev.State != api.SpoolWritten || ev.Offset != 7 {
		t.Errorf("%+v, %v", ev, err)
	}
	if _, err := c.Spooled(t.Context(), "n-2"); !errors.Is(err, &api.Error{Code: api.CodeNotFound}) {
		t.Errorf("%v", err)
	}
	if st, err := c.Spool(t.Context()); err != nil || st.Pending != 3 {
		t.Errorf("%+v, %v", st, err)
	}
}

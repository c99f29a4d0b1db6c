package compat

import (
	"bytes"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
)

// register enters a broker into Consul, as a service of any name.
func register(t *testing.T, consul, service, broker string) {
	t.Helper()
	host, port, err := net.SplitHostPort(broker)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	if err := call(t.Context(), "PUT", "http://"+consul+"/v1/agent/service/register",
		map[string]any{"Name": service, "Address": host, "Port": number}, nil); err != nil {
		t.Fatal(err)
	}
}

// overTLS: the broker's certificate is checked against the authority that the
// sidecar was given, and against no other.
func overTLS(t *testing.T, k *apache, consul string) {
	settings := []string{"SIDESTREAM_KAFKA_BOOTSTRAP=" + k.tls, "SIDESTREAM_KAFKA_TLS_ENABLED=true"}
	publishAndPull(t, startSidecar(t, "tls", consul, append(settings, "SIDESTREAM_KAFKA_TLS_CA_FILE="+k.authority)...), "over-tls")

	stranger := launchSidecar(t, "tls-stranger", consul, settings...)
	start := time.Now()
	err := call(t.Context(), "POST", stranger.url+"/topics/over-tls", []byte("x"), nil)
	refused(t, err, 503, "brokers_unavailable", "certificate", time.Since(start))
}

// overSCRAM logs in as a user with as few rights as can be.
func overSCRAM(t *testing.T, k *apache, consul string) {
	settings := []string{"SIDESTREAM_KAFKA_BOOTSTRAP=" + k.scram,
		"SIDESTREAM_KAFKA_SASL_MECHANISM=scram-sha-512", "SIDESTREAM_KAFKA_SASL_USER=" + scramUser}
	password := "SIDESTREAM_KAFKA_SASL_PASSWORD=" + scramPassword
	k.grant(t, "over-scram", kadm.OpCreate, kadm.OpRead, kadm.OpWrite)
	s := startSidecar(t, "scram", consul, append(settings, password)...)
	publishAndPull(t, s, "over-scram")
	t.Run("rights", func(t *testing.T) { rights(t, s.in(t), k) })
	t.Run("dead letters", func(t *testing.T) { deadRights(t, s.in(t), k) })
	t.Run("auto-creation", func(t *testing.T) {
		k.grant(t, "not-creatable", kadm.OpRead, kadm.OpWrite)
		s := startSidecar(t, "scram-maker", consul, append(settings, password, "SIDESTREAM_AUTO_CREATE_TOPICS=true")...)
		denied(t, "POST", s.url+"/topics/not-creatable", "create topic not-creatable")
		denied(t, "POST", s.url+"/groups/g/topics/not-creatable/pull?wait=20s", "create topic not-creatable")
	})

	stranger := launchSidecar(t, "scram-stranger", consul, append(settings, "SIDESTREAM_KAFKA_SASL_PASSWORD=guessed")...)
	start := time.Now()
	err := call(t.Context(), "POST", stranger.url+"/topics/over-scram", []byte("x"), nil)
	refused(t, err, 503, "brokers_unavailable", "refuse the login (kafka.sasl)", time.Since(start))
}

// rights: what the user may not do fails at once and says so.
func rights(t *testing.T, s sidecar, k *apache) {
	denied(t, "PUT", s.url+"/topics/not-granted", "create topic not-granted")
	denied(t, "POST", s.url+"/topics/nowhere", "nowhere") // to who has no right it is not told what there is
	k.create(t, "hidden", 1, nil)
	denied(t, "POST", s.url+"/topics/hidden", "hidden")
	denied(t, "POST", s.url+"/groups/g/topics/hidden/pull?wait=20s", "hidden")
	k.create(t, "read-only", 1, nil)
	k.grant(t, "read-only", kadm.OpRead)
	denied(t, "POST", s.url+"/topics/read-only", "read-only")
	k.create(t, "write-only", 1, nil)
	k.grant(t, "write-only", kadm.OpWrite)
	s.publish("write-only", "", "x")
	denied(t, "GET", s.url+"/topics/write-only/partitions/0/messages?offset=0", "write-only")
	denied(t, "PUT", s.url+"/topics/write-only", "create topic write-only") // though it is there
	// Without the right to describe configs those of a topic cannot be compared.
	start := time.Now()
	err := call(t.Context(), "PUT", s.url+"/topics/over-scram", map[string]any{"configs": map[string]string{"retention.ms": "3600000"}}, nil)
	refused(t, err, 403, "forbidden", "over-scram", time.Since(start))
	s.do("PUT", "/topics/over-scram", map[string]any{"partitions": 4}, nil)
	var listed struct{ Topics []struct{ Topic string } }
	s.do("GET", "/topics", nil, &listed)
	names := fmt.Sprint(listed.Topics)
	if !strings.Contains(names, "write-only") || strings.Contains(names, "hidden") {
		t.Errorf("the topics are %s, want those of which the user has a right", names)
	}
	// Nor is it known that a topic takes larger messages than Kafka's default: one
	// is sent by itself then, and the broker decides.
	value := bytes.Repeat([]byte("x"), 1<<20)
	limit := "2000000"
	for topic, operations := range map[string][]kadm.ACLOperation{
		"large-untold": {kadm.OpWrite},
		"large-told":   {kadm.OpWrite, kadm.OpDescribeConfigs},
	} {
		k.create(t, topic, 1, map[string]*string{"max.message.bytes": &limit})
		k.grant(t, topic, operations...)
	}
	s.publish("large-untold", "", string(value))
	s.publish("large-told", "", string(value))
	s.do("GET", "/topics/large-untold", nil, nil)
	// To a reader the brokers refuse only the records themselves, which the
	// sidecar goes on to ask for: a right may be given at any time.
	if got := s.pull("h", "write-only", ""); len(got.Messages) > 0 || got.Reason != "brokers_down" {
		t.Errorf("without the right to read came %q (%s), want nothing and brokers_down", texts(got.Messages), got.Reason)
	}
	var status any
	s.do("GET", "/status", nil, &status)
	if told := fmt.Sprint(status); !strings.Contains(told, "TOPIC_AUTHORIZATION_FAILED") {
		t.Errorf("the status does not tell why topic write-only is not read: %s", told)
	}
	k.grant(t, "write-only", kadm.OpRead)
	if got := texts(s.gather("h", "write-only", 1)); !slices.Equal(got, []string{"x"}) {
		t.Errorf("with the right to read came %q, want x", got)
	}
}

// deadRights: a group needs its topic of dead letters, or a right to make it;
// without either what was given up stays where it is.
func deadRights(t *testing.T, s sidecar, k *apache) {
	k.create(t, "mortal", 1, nil)
	k.grant(t, "mortal", kadm.OpRead, kadm.OpWrite)
	k.grant(t, "dead.maker", kadm.OpCreate, kadm.OpRead, kadm.OpWrite)
	s.publish("mortal", "", "bad")
	giveUp := func(group string) {
		t.Helper()
		s.do("PUT", "/groups/"+group, map[string]any{"max_attempts": 1}, nil)
		s.nack(group, "mortal", s.next(group, "mortal", "max=1")...)
	}
	giveUp("maker")
	waitFor(t, "the dead letter", func() bool {
		var dead struct{ Letters []struct{} }
		err := call(t.Context(), "GET", s.url+"/groups/maker/topics/mortal/dead", nil, &dead)
		return err == nil && len(dead.Letters) == 1
	})
	s.settled("maker", "mortal", 1)
	var back struct {
		Redriven int
		Kept     []struct{ Error httpRefusal }
	}
	start := time.Now()
	err := call(t.Context(), "POST", s.url+"/groups/maker/topics/mortal/dead/redrive", map[string]string{"to": "hidden"}, &back)
	refused(t, err, 403, "forbidden", "hidden", time.Since(start))

	giveUp("poor")
	waitFor(t, "the pulls to say that the dead letter is blocked", func() bool {
		got := s.pull("poor", "mortal", "")
		if len(got.Messages) > 0 {
			t.Errorf("%q came, which was given up", texts(got.Messages))
		}
		return got.Reason == "dead_letter_blocked"
	})
	denied(t, "GET", s.url+"/groups/poor/topics/mortal/dead", "dead.poor")
	var status any
	s.do("GET", "/status", nil, &status)
	if told := fmt.Sprint(status); !strings.Contains(told, "dead.poor") {
		t.Errorf("the status does not tell which topic may not be made: %s", told)
	}
}

// denied checks that the sidecar passes on a broker's refusal at once.
func denied(t *testing.T, method, url, says string) {
	t.Helper()
	start := time.Now()
	refused(t, call(t.Context(), method, url, nil, nil), 403, "forbidden", says, time.Since(start))
}

// grant gives the user of the login rights to one topic, and waits until the
// broker has them: the controller, who stores them, answers earlier.
func (k *apache) grant(t *testing.T, topic string, operations ...kadm.ACLOperation) {
	t.Helper()
	rights := kadm.NewACLs().Topics(topic).ResourcePatternType(kadm.ACLPatternLiteral).
		Operations(operations...).Allow("User:" + scramUser).AllowHosts()
	results, err := k.admin.CreateACLs(t.Context(), rights)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Err != nil {
			t.Fatalf("granting %v on topic %s: %v", operations, topic, r.Err)
		}
	}
	waitFor(t, "the broker to know the rights on topic "+topic, func() bool {
		results, err := k.admin.DescribeACLs(t.Context(), rights)
		if err != nil {
			t.Fatal(err)
		}
		known := 0
		for _, r := range results {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			known += len(r.Described)
		}
		return known >= len(operations)
	})
}

package compat

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// apache is Apache Kafka's own broker, one node that is its own controller, with
// a listener of each kind. Who does not log in may do everything; of users only
// what the test grants them.
type apache struct {
	plain, tls, scram string // addresses of listeners
	authority         string // PEM file that the certificate of tls is checked against
	admin             *kadm.Client
	client            *kgo.Client // of plain
}

// scramUser is the one user that the broker knows.
const scramUser, scramPassword = "sidecar", "correct horse"

const kafkaProperties = `process.roles=broker,controller
node.id=1
controller.quorum.voters=1@%[4]s
listeners=PLAINTEXT://%[1]s,SSL://%[2]s,SASL_PLAINTEXT://%[3]s,CONTROLLER://%[4]s
advertised.listeners=PLAINTEXT://%[1]s,SSL://%[2]s,SASL_PLAINTEXT://%[3]s
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
log.dirs=%[5]s
auto.create.topics.enable=false
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
ssl.keystore.type=PEM
ssl.keystore.location=%[6]s
log.cleaner.backoff.ms=200
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
`

// startKafka runs the broker from the jars of java/kafka4 until the test ends.
func startKafka(t *testing.T) *apache {
	t.Helper()
	needJava(t, "kafka4")
	lib, err := jars(t.Context(), "kafka4")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	addrs := freeAddresses(t, 4)
	k := &apache{plain: addrs[0], tls: addrs[1], scram: addrs[2]}
	var keystore string
	k.authority, keystore = certificate(t, dir)
	properties := filepath.Join(dir, "server.properties")
	text := fmt.Sprintf(kafkaProperties, addrs[0], addrs[1], addrs[2], addrs[3], filepath.Join(dir, "data"), keystore)
	if err := os.WriteFile(properties, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	path := []string{"-cp", filepath.Join(lib, "*")}
	if _, err := run(t.Context(), "", "java", slices.Concat(javaFlags, path, []string{"kafka.tools.StorageTool", "format",
		"-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", properties,
		"--add-scram", fmt.Sprintf("SCRAM-SHA-512=[name=%s,password=%s]", scramUser, scramPassword)})...); err != nil {
		t.Fatal(err)
	}
	p := launch(t, "kafka", exec.Command("java", slices.Concat(javaFlags, []string{"-Xmx512m"}, path, []string{"kafka.Kafka", properties})...))
	if k.client, err = kgo.NewClient(kgo.SeedBrokers(k.plain)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.client.Close)
	k.admin = kadm.NewClient(k.client)
	p.ready(t.Context(), func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_, err := k.admin.ListBrokers(ctx)
		return err
	})
	return k
}

// create makes a topic with the brokers' own protocol.
func (k *apache) create(t *testing.T, topic string, partitions int32, configs map[string]*string) {
	t.Helper()
	if _, err := k.admin.CreateTopic(t.Context(), partitions, 1, configs, topic); err != nil {
		t.Fatalf("creating topic %s: %v", topic, err)
	}
}

// compacted waits until fewer than a number of records are left in the only
// partition of a topic. Kafka compacts no segment that it writes to, and begins
// another with a record that comes when segment.ms is over.
func (k *apache) compacted(t *testing.T, s sidecar, topic string, fewer int) {
	t.Helper()
	waitFor(t, "Kafka to compact topic "+topic, func() bool {
		s.publish(topic, "roll", "roll")
		ends, err := k.admin.ListEndOffsets(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		end, ok := ends.Lookup(topic, 0)
		if !ok || end.Err != nil {
			t.Fatalf("no end of topic %s: %v", topic, end.Err)
		}
		reader, err := kgo.NewClient(kgo.SeedBrokers(k.plain),
			kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		left, next := 0, int64(0)
		for next < end.Offset {
			fetches := reader.PollFetches(t.Context())
			if err := fetches.Err(); err != nil {
				t.Fatal(err)
			}
			fetches.EachRecord(func(r *kgo.Record) { left, next = left+1, r.Offset+1 })
		}
		return left < fewer
	})
}

// certificate makes one for 127.0.0.1 that signs itself, and returns the PEM
// files of it alone and with its key, as Kafka's keystores of type PEM are.
func certificate(t *testing.T, dir string) (public, keystore string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "broker"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	public, keystore = filepath.Join(dir, "broker.pem"), filepath.Join(dir, "keystore.pem")
	for file, text := range map[string][]byte{
		public:   chain,
		keystore: append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), chain...),
	} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return public, keystore
}

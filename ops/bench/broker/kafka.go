package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"sidestream/ops/bench/measure"
)

//go:embed kafka-pom.xml
var kafkaPOM []byte

// errNoKafka says why Kafka is left out.
var errNoKafka = errors.New("not measuring Kafka")

// kafkaFlags are those of Kafka's own start script.
var kafkaFlags = []string{"-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
	"-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"}

// fetchKafka has Maven copy Kafka and what it needs into one folder, once.
func fetchKafka(ctx context.Context, cache string) (lib string, err error) {
	for _, tool := range []string{"java", "mvn"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "", fmt.Errorf("%w: there is no %s on the PATH", errNoKafka, tool)
		}
	}
	if cache, err = filepath.Abs(cache); err != nil {
		return "", err
	}
	lib = filepath.Join(cache, "lib")
	done := filepath.Join(cache, "fetched")
	if old, err := os.ReadFile(done); err == nil && string(old) == string(kafkaPOM) {
		return lib, nil
	}
	if err := os.RemoveAll(lib); err != nil {
		return "", err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(cache, "pom.xml"), kafkaPOM, 0o644); err != nil {
		return "", err
	}
	measure.Progress("fetching Kafka with Maven")
	mvn := exec.CommandContext(ctx, "mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory="+lib)
	mvn.Dir = cache
	if text, err := mvn.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: mvn: %w\n%s", errNoKafka, err, text)
	}
	return lib, os.WriteFile(done, kafkaPOM, 0o644)
}

const kafkaProperties = `process.roles=broker,controller
node.id=1
controller.quorum.voters=1@%[2]s
listeners=PLAINTEXT://%[1]s,CONTROLLER://%[2]s
advertised.listeners=PLAINTEXT://%[1]s
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs=%[3]s
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
auto.create.topics.enable=false
log.segment.delete.delay.ms=0
`

// startKafka starts one node with KRaft on the data in dir/kafka/data, which is
// formatted when it is new.
func startKafka(ctx context.Context, lib, dir string) (*measure.Process, error) {
	home := filepath.Join(dir, "kafka")
	data := filepath.Join(home, "data")
	if err := os.MkdirAll(data, 0o755); err != nil {
		return nil, err
	}
	absolute, err := filepath.Abs(data)
	if err != nil {
		return nil, err
	}
	addr, err := measure.FreeAddr()
	if err != nil {
		return nil, err
	}
	control, err := measure.FreeAddr()
	if err != nil {
		return nil, err
	}
	properties := filepath.Join(home, "server.properties")
	if err := os.WriteFile(properties, fmt.Appendf(nil, kafkaProperties, addr, control, absolute), 0o644); err != nil {
		return nil, err
	}
	path := filepath.Join(lib, "*")
	if _, err := os.Stat(filepath.Join(data, "meta.properties")); err != nil {
		format := exec.CommandContext(ctx, "java", "-cp", path, "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", properties)
		if text, err := format.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("formatting Kafka's folder: %w\n%s", err, text)
		}
	}
	s, err := measure.Launch("kafka", data, exec.Command("java", append(append([]string{}, kafkaFlags...), "-cp", path, "kafka.Kafka", properties)...), nil)
	if err != nil {
		return nil, err
	}
	s.Addr = addr
	if err := s.Reachable(ctx); err != nil {
		return nil, errors.Join(err, s.Kill())
	}
	return s, nil
}

package compat

import (
	"context"
	"fmt"
	"os/exec"
	"sync"
)

// confluent is librdkafka's Python client, confluent_kafka.
type confluent struct{}

// script is in this folder, which is where tests run.
const script = "confluent.py"

func (confluent) Name() string { return "confluent-kafka (Python)" }

func (confluent) Produce(ctx context.Context, broker, topic, codec string, records []Record) error {
	python, err := findPython()
	if err != nil {
		return err
	}
	_, err = run(ctx, toLines(records), python, script, "produce", broker, topic, codec)
	return err
}

func (confluent) Consume(ctx context.Context, broker, topic string) ([]Record, error) {
	python, err := findPython()
	if err != nil {
		return nil, err
	}
	out, err := run(ctx, "", python, script, "consume", broker, topic)
	if err != nil {
		return nil, err
	}
	return fromLines(out)
}

// findPython finds an interpreter that has the module: the one on the PATH may
// not be the distribution's, for which its package was installed.
var findPython = sync.OnceValues(func() (string, error) {
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(python, "-c", "import confluent_kafka").Run() == nil {
			return python, nil
		}
	}
	return "", fmt.Errorf("no Python with confluent_kafka: install python3-confluent-kafka")
})

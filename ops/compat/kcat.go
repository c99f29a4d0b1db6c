package compat

import "context"

// kcat is the command-line client on librdkafka.
type kcat struct{}

func (kcat) Name() string { return "kcat" }

func (kcat) Produce(ctx context.Context, broker, topic, codec string, records []Record) error {
	_, err := run(ctx, toLines(records), "kcat", "-P", "-b", broker, "-t", topic, "-z", codec, "-K", "\t", "-X", "acks=all")
	return err
}

func (kcat) Consume(ctx context.Context, broker, topic string) ([]Record, error) {
	out, err := run(ctx, "", "kcat", "-C", "-b", broker, "-t", topic, "-o", "beginning", "-e", "-q", "-f", `%k\t%s\n`,
		"-X", "check.crcs=true", "-X", "fetch.wait.max.ms=50") // the end is told by a fetch that waited in vain
	if err != nil {
		return nil, err
	}
	return fromLines(out)
}

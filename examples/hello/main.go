// Command hello is the smallest whole program: it publishes one greeting and
// handles all that arrive until it is interrupted.
//
//	sidestream dev                     # in another terminal
//	go run ./examples/hello world
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"

	"sidestream/sdk"
	"sidestream/sdk/api"
)

const (
	topic = "hello"
	group = "greeters"
)

func main() {
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	name := "world"
	if len(os.Args) > 1 {
		name = os.Args[1]
	}
	if err := run(ctx, name, func(text string) { fmt.Println(text) }); err != nil {
		log.Fatal(err)
	}
}

// run publishes a greeting and gives every greeting that arrives to heard,
// until ctx ends.
func run(ctx context.Context, name string, heard func(string)) error {
	client, err := sdk.New("") // SIDESTREAM_SIDECAR, else 127.0.0.1:4100
	if err != nil {
		return err
	}
	defer client.Close()

	// The key keeps the greetings of one name in order.
	at, err := client.Publish(ctx, topic, sdk.Message{Key: []byte(name), Value: []byte("hello " + name)})
	if err != nil {
		return err
	}
	log.Printf("published: partition %d, offset %d", at.Partition, at.Offset)

	return client.Consume(ctx, group, topic, sdk.ConsumeOptions{OnError: func(err error) { log.Print(err) }},
		func(_ context.Context, m api.Message) error {
			greeting, err := m.ValueBytes() // any bytes; nil for a tombstone
			if err != nil {
				return err // gives the message back: it comes again
			}
			heard(string(greeting))
			return nil // acknowledges it
		})
}

package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"sidestream/sdk"
	"sidestream/sdk/api"
)

// sidecar starts a stand-in, so that the examples run anywhere. A real program
// uses sdk.New("") for the sidecar on 127.0.0.1:4100.
func sidecar() (address string, stop func()) { return newFake().serve() }

func Example() {
	address, stop := sidecar()
	defer stop()
	ctx := context.Background()

	client, err := sdk.New(address)
	if err != nil {
		log.Fatal(err)
	}
	at, err := client.Publish(ctx, "hello", sdk.Message{Key: []byte("me"), Value: []byte("hi")})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("published to partition %d at offset %d\n", at.Partition, at.Offset)

	pulled, err := client.Pull(ctx, "g", "hello", sdk.PullOptions{Wait: 5 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range pulled.Messages {
		value, err := m.ValueBytes()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s %s\n", m.ID, value)
		if _, err := client.Ack(ctx, "g", "hello", m.Receipt); err != nil {
			log.Fatal(err)
		}
	}
	pulled, err = client.Pull(ctx, "g", "hello", sdk.PullOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(pulled.Messages), "messages:", *pulled.Reason)
	// Output:
	// published to partition 0 at offset 0
	// hello/0/0 hi
	// 0 messages: at_end
}

func ExampleClient_Consume() {
	address, stop := sidecar()
	defer stop()
	client, err := sdk.New(address)
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if _, err := client.PublishLines(ctx, "orders", []byte("tea\ncoffee\n")); err != nil {
		log.Fatal(err)
	}

	err = client.Consume(ctx, "kitchen", "orders", sdk.ConsumeOptions{}, func(_ context.Context, m api.Message) error {
		drink, err := m.ValueBytes()
		if err != nil {
			return err
		}
		fmt.Printf("making %s\n", drink)
		if string(drink) == "coffee" {
			cancel() // enough for an example
		}
		return nil // acknowledged; an error would give the message back
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// making tea
	// making coffee
}

func ExampleClient_PublishBatch() {
	address, stop := sidecar()
	defer stop()
	client, err := sdk.New(address)
	if err != nil {
		log.Fatal(err)
	}
	result, err := client.PublishBatch(context.Background(), "orders", []sdk.Message{
		{Key: []byte("table-1"), Value: []byte("tea")},
		{Key: []byte("table-2"), Value: []byte{0xff, 0x00}}, // any bytes
	})
	if err != nil {
		log.Fatal(err) // all failed alike
	}
	for i, r := range result.Results {
		if r.Error != nil {
			fmt.Println(i, "failed:", r.Error)
		}
	}
	fmt.Println(result.Written, "written,", result.Failed, "failed")
	// Output: 2 written, 0 failed
}

func ExampleClient_Seek() {
	address, stop := sidecar()
	defer stop()
	client, err := sdk.New(address)
	if err != nil {
		log.Fatal(err)
	}
	// Works while the group is consuming.
	sought, err := client.Seek(context.Background(), "kitchen", "orders", "earliest")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("partition 0 goes on at", sought.Offsets[0])
	// Output: partition 0 goes on at 0
}

func ExampleClient_CreateTopic() {
	address, stop := sidecar()
	defer stop()
	client, err := sdk.New(address)
	if err != nil {
		log.Fatal(err)
	}
	topic, err := client.CreateTopic(context.Background(), "orders", api.TopicSpec{Partitions: 4,
		Configs: map[string]string{"retention.ms": "86400000"}})
	if err != nil && !errors.Is(err, &api.Error{Code: api.CodeTopicExists}) {
		log.Fatal(err)
	}
	fmt.Println(topic.Topic, "has", len(topic.Partitions), "partitions")
	// Output: orders has 4 partitions
}

func ExampleNew_unix() {
	client, err := sdk.New("unix:/run/sidestream.sock")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if err := client.Ready(context.Background()); err != nil {
		fmt.Println("not running here")
	}
	// Output: not running here
}

// Command post publishes page views through a sidecar.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"

	"sidestream/examples/pageviews"
	"sidestream/sdk"
)

func main() {
	log.SetFlags(0)
	address := flag.String("sidecar", "", "address of the sidecar (default $"+sdk.EnvAddress+", else "+sdk.DefaultAddress+")")
	topic := flag.String("topic", pageviews.Topic, "topic to publish to")
	file := flag.String("file", "", "file of page views, one JSON object a line (default: the 9,999 of the example)")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := post(ctx, *address, *topic, *file); err != nil {
		log.Fatal(err)
	}
}

func post(ctx context.Context, address, topic, file string) error {
	text := pageviews.Data
	if file != "" {
		var err error
		if text, err = os.ReadFile(file); err != nil {
			return err
		}
	}
	client, err := sdk.New(address)
	if err != nil {
		return err
	}
	defer client.Close()
	written, err := pageviews.Post(ctx, client, topic, text)
	fmt.Printf("%d views written to %s\n", written, topic)
	return err
}

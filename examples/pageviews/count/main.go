// Command count consumes page views in a group and prints the most viewed.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"sidestream/examples/pageviews"
	"sidestream/sdk"
	"sidestream/sdk/api"
)

func main() {
	log.SetFlags(0)
	address := flag.String("sidecar", "", "address of the sidecar (default $"+sdk.EnvAddress+", else "+sdk.DefaultAddress+")")
	topic := flag.String("topic", pageviews.Topic, "topic to consume")
	group := flag.String("group", pageviews.Group, "group to consume in")
	quiet := flag.Duration("quiet", 5*time.Second, "stop after this long without a view")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := count(ctx, *address, *group, *topic, *quiet); err != nil {
		log.Fatal(err)
	}
}

func count(ctx context.Context, address, group, topic string, quiet time.Duration) error {
	client, err := sdk.New(address)
	if err != nil {
		return err
	}
	defer client.Close()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	idle := time.AfterFunc(quiet, cancel)
	defer idle.Stop()

	views, total := map[string]int{}, 0
	err = client.Consume(ctx, group, topic, sdk.ConsumeOptions{OnError: func(err error) { log.Print(err) }},
		func(_ context.Context, m api.Message) error {
			idle.Reset(quiet)
			value, err := m.ValueBytes()
			if err != nil {
				return err
			}
			view, err := pageviews.Parse(value)
			if err != nil {
				log.Printf("%s: %v", m.ID, err)
				return nil // acknowledged: it would never become one
			}
			views[view.Path]++
			total++
			return nil
		})
	for _, p := range pageviews.Top(views, 10) {
		fmt.Printf("%6d  %s\n", p.Views, p.Path)
	}
	fmt.Printf("%d views counted\n", total)
	return err
}

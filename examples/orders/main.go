// Command orders handles orders of many customers at once, and each customer's
// one after the other: the key of an order is its customer, and the group keeps
// order by key. A failed order comes again later and holds up only its customer.
// An interrupt (or SIGTERM) lets the orders at work finish.
//
//	sidestream dev                     # in another terminal
//	go run ./examples/orders -post 20
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"sidestream/sdk"
	"sidestream/sdk/api"
)

const (
	topic = "orders"
	group = "kitchen"
)

// Order is the value of a message.
type Order struct {
	Customer string `json:"customer"`
	Dish     string `json:"dish"`
}

func main() {
	log.SetFlags(log.Ltime)
	post := flag.Int("post", 0, "post so many orders first")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *post, cook); err != nil {
		log.Fatal(err)
	}
}

// run posts so many orders, and handles orders with work until ctx ends.
func run(ctx context.Context, post int, work func(context.Context, Order) error) error {
	client, err := sdk.New("") // SIDESTREAM_SIDECAR, else 127.0.0.1:4100
	if err != nil {
		return err
	}
	defer client.Close()

	// By key and not by partition: a slow customer delays no other. Five failures
	// are enough, then the order goes to the topic dead.kitchen.
	if _, err := client.ConfigureGroup(ctx, group, api.GroupConfig{Order: "key", MaxAttempts: new(5)}); err != nil {
		return err
	}
	if err := publish(ctx, client, post); err != nil {
		return err
	}
	options := sdk.ConsumeOptions{
		Concurrency:    8,                // handlers at once
		HandlerTimeout: 10 * time.Second, // of one order
		StopTimeout:    15 * time.Second, // what SIGTERM leaves to those at work
		OnError:        func(err error) { log.Print(err) },
		OnReason:       func(r api.Reason) { log.Printf("no orders: %q", r) }, // "" when they come again
	}
	return client.Consume(ctx, group, topic, options, func(ctx context.Context, m api.Message) error {
		value, err := m.ValueBytes()
		if err != nil {
			return err
		}
		var order Order
		if err := json.Unmarshal(value, &order); err != nil {
			log.Printf("%s is no order: %v", m.ID, err)
			return nil // acknowledged: it would never become one
		}
		if err := work(ctx, order); errors.Is(err, errSoldOut) {
			return sdk.Later(time.Minute, err) // not again in a second
		} else if err != nil {
			return err
		}
		log.Printf("%s: %s for %s", m.ID, order.Dish, order.Customer)
		return nil
	})
}

var dishes = []string{"soup", "noodles", "rice", "pie", "salad"}

func publish(ctx context.Context, client *sdk.Client, n int) error {
	for i := range n {
		order := Order{Customer: fmt.Sprint("customer-", i%5), Dish: dishes[i%len(dishes)]}
		value, err := json.Marshal(order)
		if err != nil {
			return err
		}
		if _, err := client.Publish(ctx, topic, sdk.Message{Key: []byte(order.Customer), Value: value}); err != nil {
			return err
		}
	}
	return nil
}

var errSoldOut = errors.New("sold out")

// cook takes a while and fails now and then.
func cook(ctx context.Context, order Order) error {
	select {
	case <-time.After(time.Duration(rand.IntN(2000)) * time.Millisecond):
	case <-ctx.Done():
		return ctx.Err()
	}
	if rand.IntN(10) == 0 {
		return fmt.Errorf("the %s is burnt", order.Dish)
	}
	return nil
}

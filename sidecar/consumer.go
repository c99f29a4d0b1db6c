package sidecar

import (
	"context"

	"sidestream/sdk/api"
	httpapi "sidestream/sidecar/api"
	"sidestream/sidecar/consume"
)

// consumer is what the sidecar runs for its groups: *consume.Manager.
type consumer interface {
	httpapi.Consumer
	Start()
	Close(ctx context.Context) error
	Status() any
}

func newConsumer(s *Sidecar) (consumer, error) { return noConsumer{}, nil }

// noConsumer answers that there is none.
type noConsumer struct{}

var errNoConsumer = api.NewError(api.CodeInternal, "consuming is not part of this build")

func (noConsumer) Start()                      {}
func (noConsumer) Close(context.Context) error { return nil }
func (noConsumer) Status() any                 { return nil }
func (noConsumer) Pull(context.Context, consume.PullRequest) (*consume.Delivery, error) {
	return nil, errNoConsumer
}
func (noConsumer) Ack(context.Context, string, string, api.Receipts) (api.ReceiptResponse, error) {
	return api.ReceiptResponse{}, errNoConsumer
}
func (noConsumer) Nack(context.Context, string, string, api.Receipts) (api.ReceiptResponse, error) {
	return api.ReceiptResponse{}, errNoConsumer
}
func (noConsumer) Extend(context.Context, string, string, api.Receipts) (api.ReceiptResponse, error) {
	return api.ReceiptResponse{}, errNoConsumer
}
func (noConsumer) Offsets(context.Context, string, string) (api.Offsets, error) {
	return api.Offsets{}, errNoConsumer
}
func (noConsumer) Seek(context.Context, string, string, api.SeekRequest) (api.Sought, error) {
	return api.Sought{}, errNoConsumer
}
func (noConsumer) Configure(context.Context, string, api.GroupConfig) (api.Group, error) {
	return api.Group{}, errNoConsumer
}
func (noConsumer) Group(context.Context, string) (api.Group, error) {
	return api.Group{}, errNoConsumer
}
func (noConsumer) Groups(context.Context) (api.GroupList, error) {
	return api.GroupList{}, errNoConsumer
}
func (noConsumer) DeleteGroup(context.Context, string) error { return errNoConsumer }

package consume

import (
	"context"
	"errors"

	"sidestream/sdk/api"
)

type Manager struct{}

func New(cfg Config, deps Deps) (*Manager, error) { return nil, errors.ErrUnsupported }
func (m *Manager) Start()                          {}
func (m *Manager) Close(ctx context.Context) error { return nil }
func (m *Manager) Pull(ctx context.Context, req PullRequest) (*Delivery, error) {
	return nil, errors.ErrUnsupported
}
func (m *Manager) Ack(ctx context.Context, group, topic string, r api.Receipts) (api.ReceiptResponse, error) {
	return api.ReceiptResponse{}, errors.ErrUnsupported
}
func (m *Manager) Nack(ctx context.Context, group, topic string, r api.Receipts) (api.ReceiptResponse, error) {
	return api.ReceiptResponse{}, errors.ErrUnsupported
}
func (m *Manager) Extend(ctx context.Context, group, topic string, r api.Receipts) (api.ReceiptResponse, error) {
	return api.ReceiptResponse{}, errors.ErrUnsupported
}
func (m *Manager) Offsets(ctx context.Context, group, topic string) (api.Offsets, error) {
	return api.Offsets{}, errors.ErrUnsupported
}
func (m *Manager) Seek(ctx context.Context, group, topic string, r api.SeekRequest) (api.Sought, error) {
	return api.Sought{}, errors.ErrUnsupported
}
func (m *Manager) Configure(ctx context.Context, group string, c api.GroupConfig) (api.Group, error) {
	return api.Group{}, errors.ErrUnsupported
}
func (m *Manager) Group(ctx context.Context, group string) (api.Group, error) {
	return api.Group{}, errors.ErrUnsupported
}
func (m *Manager) Groups(ctx context.Context) (api.GroupList, error) {
	return api.GroupList{}, errors.ErrUnsupported
}
func (m *Manager) DeleteGroup(ctx context.Context, group string) error { return errors.ErrUnsupported }
func (m *Manager) Status() any                                         { return nil }

package consume

import (
	"context"
	"sync"

	"sidestream/sdk/api"
)

func (m *Manager) settleAll(ctx context.Context, group, topic string, r api.Receipts, f func(*owner, []receipt) []outcome) (api.ReceiptResponse, error) {
	if err := checkNames(group, topic); err != nil {
		return api.ReceiptResponse{}, err
	}
	if len(r.Receipts) == 0 {
		return api.ReceiptResponse{}, badRequest(`receipts is empty: send {"receipts":["…"]} with the receipts of pulled messages`)
	}
	var s *share
	if g := m.lookup(group); g != nil {
		s = g.share(topic)
	}
	return settle(s, group, topic, r.Receipts, f), nil
}

// settleBoth settles the receipts in the body of a pull.
func (m *Manager) settleBoth(ctx context.Context, g *group, s *share, acks, nacks []string) (api.ReceiptResponse, error) {
	a := settle(s, g.name, s.topic, acks, func(o *owner, rs []receipt) []outcome { return o.ack(ctx, rs) })
	n := settle(s, g.name, s.topic, nacks, func(o *owner, rs []receipt) []outcome { return o.nack(rs, 0) })
	return api.ReceiptResponse{OK: a.OK + n.OK, Failed: a.Failed + n.Failed, Results: append(a.Results, n.Results...)}, nil
}

// settle hands receipts to the owners of their partitions, all of a partition
// at once and the partitions beside each other: each costs a synced write.
func settle(s *share, group, topic string, texts []string, f func(*owner, []receipt) []outcome) api.ReceiptResponse {
	resp := api.ReceiptResponse{Results: make([]api.ReceiptResult, len(texts))}
	at := map[int32][]int{}
	receipts := make([]receipt, len(texts))
	for i, text := range texts {
		resp.Results[i].Receipt = text
		r, err := decodeReceipt(text, group, topic)
		if err != nil {
			resp.Results[i].Error = badRequest("%v", err)
			continue
		}
		receipts[i] = r
		resp.Results[i].ID = MessageID(topic, r.partition, r.offset)
		at[r.partition] = append(at[r.partition], i)
	}
	one := func(partition int32, is []int) {
		var o *owner
		if s != nil {
			o = s.owner(partition)
		}
		if o == nil {
			for _, i := range is {
				resp.Results[i].Error = errLeaseLost("this sidecar no longer owns the partition")
			}
			return
		}
		rs := make([]receipt, len(is))
		for j, i := range is {
			rs[j] = receipts[i]
		}
		for j, out := range f(o, rs) {
			res := &resp.Results[is[j]]
			res.Error, res.Provisional = out.err, out.provisional
			if !out.until.IsZero() {
				until := out.until.UTC()
				res.LeaseUntil = &until
			}
		}
		o.s.g.m.lent.settled(o, rs)
	}
	if len(at) == 1 {
		for p, is := range at {
			one(p, is)
		}
	} else {
		var wg sync.WaitGroup
		for p, is := range at {
			wg.Go(func() { one(p, is) })
		}
		wg.Wait()
	}
	for _, res := range resp.Results {
		if res.Error == nil {
			resp.OK++
		} else {
			resp.Failed++
		}
	}
	return resp
}

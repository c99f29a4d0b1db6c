package consume

import (
	"context"
	"slices"
	"sync"

	"sidestream/sdk/api"
)

func (m *Manager) settleAll(ctx context.Context, group, topics string, r api.Receipts, f func(*owner, []receipt) []outcome) (api.ReceiptResponse, error) {
	c, err := checkChoice(group, topics)
	if err != nil {
		return api.ReceiptResponse{}, err
	}
	if len(r.Receipts) == 0 {
		return api.ReceiptResponse{}, badRequest(`receipts is empty: send {"receipts":["…"]} with the receipts of pulled messages`)
	}
	return settle(m.lookup(group), group, c, r.Receipts, false, f), nil
}

// settleBoth settles the receipts in the body of a pull.
func (m *Manager) settleBoth(ctx context.Context, g *group, c choice, req PullRequest) (api.ReceiptResponse, error) {
	a := settle(g, g.name, c, req.Ack, req.Brief, func(o *owner, rs []receipt) []outcome { return o.ack(ctx, rs) })
	n := settle(g, g.name, c, req.Nack, req.Brief, func(o *owner, rs []receipt) []outcome { return o.nack(ctx, rs, refusal{}) })
	return api.ReceiptResponse{OK: a.OK + n.OK, Failed: a.Failed + n.Failed, Results: append(a.Results, n.Results...)}, nil
}

// bundle are the receipts of one partition.
type bundle struct {
	topic     string
	partition int32
	receipts  []receipt
	at        []int // their places in the request
}

// settle hands receipts to the owners of their partitions, all of a partition
// at once and the partitions beside each other: each costs a synced write. g is
// nil when this sidecar is not in the group. Brief, what was simply settled is
// not named.
func settle(g *group, group string, c choice, texts []string, brief bool, f func(*owner, []receipt) []outcome) api.ReceiptResponse {
	resp := api.ReceiptResponse{Results: make([]api.ReceiptResult, len(texts))}
	var bundles []*bundle
	var last *bundle
	open := opener{g: g, group: group, choice: c}
	for i, text := range texts {
		resp.Results[i].Receipt = text
		topic, r, err := open.open(text)
		if err != nil {
			resp.Results[i].Error = badRequest("%v", err)
			continue
		}
		if last == nil || last.partition != r.partition || last.topic != topic {
			at := slices.IndexFunc(bundles, func(b *bundle) bool { return b.partition == r.partition && b.topic == topic })
			if at < 0 {
				at = len(bundles)
				bundles = append(bundles, &bundle{topic: topic, partition: r.partition})
				if at == 0 { // mostly all are of one partition
					bundles[0].receipts, bundles[0].at = make([]receipt, 0, len(texts)), make([]int, 0, len(texts))
				}
			}
			last = bundles[at]
		}
		last.receipts, last.at = append(last.receipts, r), append(last.at, i)
	}
	one := func(b *bundle) {
		var o *owner
		if g != nil {
			if s := g.share(b.topic); s != nil {
				o = s.owner(b.partition)
			}
		}
		if o == nil {
			for _, i := range b.at {
				resp.Results[i].Error = errLeaseLost("this sidecar no longer owns the partition")
			}
			return
		}
		for j, out := range f(o, b.receipts) {
			res := &resp.Results[b.at[j]]
			res.Error, res.Provisional = out.err, out.provisional
			if !out.until.IsZero() {
				until := out.until.UTC()
				res.LeaseUntil = &until
			}
		}
		o.s.g.m.lent.settled(o, b.receipts)
	}
	if len(bundles) == 1 {
		one(bundles[0])
	} else {
		var wg sync.WaitGroup
		for _, b := range bundles {
			wg.Go(func() { one(b) })
		}
		wg.Wait()
	}
	var ids arena
	for _, b := range bundles {
		for j, i := range b.at {
			if res := &resp.Results[i]; !brief || res.Error != nil || res.Provisional {
				res.ID = ids.id(b.topic, b.partition, b.receipts[j].offset)
			}
		}
	}
	for i := range resp.Results {
		if resp.Results[i].Error == nil {
			resp.OK++
		} else {
			resp.Failed++
		}
	}
	return resp
}

// opener reads receipts that were sent to a choice of topics.
type opener struct {
	g     *group // nil when this sidecar is not in the group
	group string
	choice
	tried []string // topics of receipts that do not tell theirs, the last found first
}

// open reads a receipt, and which of the topics it is of.
func (o *opener) open(text string) (topic string, r receipt, err error) {
	if o.single() {
		r, err = decodeReceipt(text, o.group, o.names[0])
		return o.names[0], r, err
	}
	if topic, ok := receiptTopic(text); ok {
		if !o.has(topic) {
			return "", r, errReceipt
		}
		r, err = decodeReceipt(text, o.group, topic)
		return topic, r, err
	}
	// One that does not tell its topic, from a pull of that topic alone: its
	// checksum fits no other.
	if o.tried == nil {
		o.tried = slices.Clone(o.names)
		if o.g != nil && len(o.patterns) > 0 {
			for _, s := range o.g.all() {
				if matchAny(o.patterns, s.topic) {
					o.tried = append(o.tried, s.topic)
				}
			}
		}
	}
	for i, topic := range o.tried {
		if r, err := decodeReceipt(text, o.group, topic); err == nil {
			o.tried[0], o.tried[i] = o.tried[i], o.tried[0]
			return topic, r, nil
		}
	}
	return "", r, errReceipt
}

// checkChoice reads the group and the topics of a request.
func checkChoice(group, topics string) (choice, error) {
	if err := checkGroup(group); err != nil {
		return choice{}, err
	}
	return parseChoice(topics)
}

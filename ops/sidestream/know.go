package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/agent"
	"sidestream/sdk"
	"sidestream/sdk/api"
	"sidestream/sidecar"
)

const (
	agentDefault = "127.0.0.1:4101"
	askTime      = 3 * time.Second // for one of those that are asked
)

// sources are those that know something of the cluster: the brokers, agents and
// a sidecar. The first that answers is asked first; where it is gone the others
// tell what they know.
type sources struct {
	cmd       *cobra.Command
	bootstrap *[]string
	agents    *[]string
	sidecar   *string
}

// sourceFlags adds the flags that name them.
func sourceFlags(cmd *cobra.Command) sources {
	return sources{cmd: cmd,
		bootstrap: cmd.Flags().StringSlice("bootstrap", []string{"127.0.0.1:9092"}, "brokers to start from, host:port (environment "+envBootstrap+")"),
		agents:    cmd.Flags().StringSlice("agent", []string{agentDefault}, "host:port of an agent's HTTP, asked where brokers do not answer; may be repeated (environment "+envAgent+")"),
		sidecar:   sidecarFlag(cmd),
	}
}

// agentList is the agents to ask.
func (s sources) agentList() []string {
	if env := envOr(envAgent, ""); env != "" && !s.cmd.Flags().Changed("agent") {
		return strings.Split(env, ",")
	}
	return *s.agents
}

// named says that the user said where it is, so that it should be there.
func (s sources) named(flag, env string) bool {
	return s.cmd.Flags().Changed(flag) || envOr(env, "") != ""
}

// knowledge is what somebody knows of topics and brokers.
type knowledge struct {
	Source  string       `json:"source"`         // whose knowledge it is
	AsOf    time.Time    `json:"as_of"`          // how old it is
	Note    string       `json:"note,omitempty"` // who was asked before and did not answer
	Brokers []nodeKnown  `json:"-"`
	Topics  []topicKnown `json:"topics"`
	Old     string       `json:"-"` // why it is old, if not for want of the coordination store
}

type nodeKnown struct {
	ID      int32  `json:"id"`
	Address string `json:"address"`
}

type topicKnown struct {
	Topic      string
	UUID       string
	Partitions []partitionRow
	Err        error
}

// offline are the partitions without a leader.
func (t topicKnown) offline() (list []int32) {
	for _, p := range t.Partitions {
		if p.Leader < 0 {
			list = append(list, p.Partition)
		}
	}
	return list
}

// topics asks for the topics with these names, or for all: the brokers, else the
// agents, else the sidecar. more, if not nil, adds what the brokers can tell
// besides.
func (s sources) topics(ctx context.Context, names []string, more func(context.Context, *kgo.Client, *knowledge)) (knowledge, error) {
	var missed []string
	k, err := s.fromBrokers(ctx, names, more)
	if err == nil || ctx.Err() != nil || errors.As(err, new(usageError)) {
		return k, err
	}
	missed = append(missed, err.Error())
	errs := []error{err}
	if k, err = s.fromAgents(ctx, names); err != nil {
		errs, missed = append(errs, err), append(missed, err.Error())
		if k, err = s.fromSidecar(ctx, names); err != nil {
			return k, errors.Join(append(errs, err)...)
		}
	}
	k.Note = strings.Join(missed, "; ")
	return k, nil
}

// dialBrokers makes a client and makes sure that a broker answers.
func (s sources) dialBrokers(ctx context.Context) (*kgo.Client, error) {
	seeds := seedsOf(s.cmd, *s.bootstrap)
	kafka, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.ClientID("sidestream-cli"), kgo.RetryTimeout(askTime), kgo.RequestTimeoutOverhead(askTime))
	if err != nil {
		return nil, usageError{err}
	}
	ping, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	if err := kafka.Ping(ping); err != nil {
		kafka.Close()
		return nil, fmt.Errorf("no broker answers at %s (see --bootstrap): %w", strings.Join(seeds, ", "), err)
	}
	return kafka, nil
}

func (s sources) fromBrokers(ctx context.Context, names []string, more func(context.Context, *kgo.Client, *knowledge)) (knowledge, error) {
	kafka, err := s.dialBrokers(ctx)
	if err != nil {
		return knowledge{}, err
	}
	defer kafka.Close()
	call, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	k, err := brokersKnow(call, kafka, names)
	if err != nil {
		return k, fmt.Errorf("the brokers at %s do not tell their topics: %w", strings.Join(seedsOf(s.cmd, *s.bootstrap), ", "), err)
	}
	if more != nil {
		more(call, kafka, &k)
	}
	return k, nil
}

// brokersKnow is what the brokers' metadata says.
func brokersKnow(ctx context.Context, kafka *kgo.Client, names []string) (knowledge, error) {
	m, err := kadm.NewClient(kafka).Metadata(ctx, names...)
	if err != nil {
		return knowledge{}, err
	}
	k := knowledge{AsOf: time.Now()}
	live := map[int32]bool{}
	for _, b := range m.Brokers {
		live[b.NodeID] = true
		k.Brokers = append(k.Brokers, nodeKnown{b.NodeID, fmt.Sprintf("%s:%d", b.Host, b.Port)})
	}
	slices.SortFunc(k.Brokers, func(a, b nodeKnown) int { return int(a.ID - b.ID) })
	var addresses []string
	for _, b := range k.Brokers {
		addresses = append(addresses, b.Address)
	}
	k.Source = "brokers " + strings.Join(addresses[:min(len(addresses), 5)], ", ")
	for _, t := range m.Topics.Sorted() {
		if t.IsInternal {
			continue
		}
		known := topicKnown{Topic: t.Topic, UUID: t.ID.String(), Err: t.Err}
		for _, p := range t.Partitions.Sorted() {
			row := partitionRow{Partition: p.Partition, Leader: p.Leader, Replicas: p.Replicas, ISR: p.ISR}
			if !live[p.Leader] {
				row.Leader = -1
			}
			if p.Err != nil {
				row.Error = p.Err.Error()
			}
			known.Partitions = append(known.Partitions, row)
		}
		k.Topics = append(k.Topics, known)
	}
	return k, nil
}

// addOffsets asks the leaders for the first and the last offsets. Partitions
// without a leader are not asked for: a client would look for one until its time
// is over.
func addOffsets(ctx context.Context, kafka *kgo.Client, k *knowledge) {
	starts, ends := offsetsOf(ctx, kafka, k, -2), offsetsOf(ctx, kafka, k, -1)
	for i := range k.Topics {
		t := &k.Topics[i]
		for j := range t.Partitions {
			p := &t.Partitions[j]
			if o, ok := starts[partitionKey{t.Topic, p.Partition}]; ok {
				p.Start = &o
			}
			if o, ok := ends[partitionKey{t.Topic, p.Partition}]; ok {
				p.End = &o
			}
		}
	}
}

type partitionKey struct {
	topic     string
	partition int32
}

func offsetsOf(ctx context.Context, kafka *kgo.Client, k *knowledge, ts int64) map[partitionKey]int64 {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	for _, t := range k.Topics {
		rt := kmsg.NewListOffsetsRequestTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			if p.Leader >= 0 {
				rp := kmsg.NewListOffsetsRequestTopicPartition()
				rp.Partition, rp.Timestamp = p.Partition, ts
				rt.Partitions = append(rt.Partitions, rp)
			}
		}
		if len(rt.Partitions) > 0 {
			req.Topics = append(req.Topics, rt)
		}
	}
	found := map[partitionKey]int64{}
	if len(req.Topics) == 0 {
		return found
	}
	for _, shard := range kafka.RequestSharded(ctx, req) {
		if shard.Err != nil {
			continue // its offsets are not known
		}
		for _, t := range shard.Resp.(*kmsg.ListOffsetsResponse).Topics {
			for _, p := range t.Partitions {
				if p.ErrorCode == 0 {
					found[partitionKey{t.Topic, p.Partition}] = p.Offset
				}
			}
		}
	}
	return found
}

// addSizes asks all brokers that answer for the sizes of their logs; of several
// copies of a partition the largest counts.
func addSizes(ctx context.Context, kafka *kgo.Client, k *knowledge) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	all, _ := kadm.NewClient(kafka).DescribeAllLogDirs(ctx, nil) // of those that do not answer nothing is known
	sizes := map[partitionKey]int64{}
	all.Each(func(d kadm.DescribedLogDir) {
		d.Topics.Each(func(p kadm.DescribedLogDirPartition) {
			at := partitionKey{p.Topic, p.Partition}
			if n, ok := sizes[at]; !ok || p.Size > n {
				sizes[at] = p.Size
			}
		})
	})
	for i := range k.Topics {
		t := &k.Topics[i]
		for j := range t.Partitions {
			if n, ok := sizes[partitionKey{t.Topic, t.Partitions[j].Partition}]; ok {
				t.Partitions[j].Bytes = &n
			}
		}
	}
}

// fromAgents asks every agent: the picture of the cluster is the same from each,
// sizes and offsets are of the partitions that each leads.
func (s sources) fromAgents(ctx context.Context, names []string) (knowledge, error) {
	var errs []error
	var k knowledge
	var who []string
	for _, address := range s.agentList() {
		var list agent.TopicList
		path := "/topics"
		if len(names) == 1 {
			path += "?topic=" + names[0]
		}
		if err := getAgent(ctx, address, path, &list); err != nil {
			errs = append(errs, fmt.Errorf("agent %s: %w", address, err))
			continue
		}
		who = append(who, fmt.Sprintf("%s (broker %d)", address, list.ID))
		if len(who) == 1 {
			k = agentKnows(list)
			continue
		}
		mergeAgent(&k, list)
	}
	if len(who) == 0 {
		return k, errors.Join(errs...)
	}
	k.Source = "agent " + strings.Join(who, ", ")
	return k, nil
}

func agentKnows(list agent.TopicList) knowledge {
	k := knowledge{AsOf: list.AsOf}
	for _, n := range list.Nodes {
		k.Brokers = append(k.Brokers, nodeKnown{n.ID, n.Address})
	}
	for _, t := range list.Topics {
		known := topicKnown{Topic: t.Topic, UUID: t.UUID}
		for _, p := range t.Partitions {
			known.Partitions = append(known.Partitions, partitionRow{Partition: p.Partition, Leader: p.Leader, Replicas: p.Replicas, ISR: p.ISR, Start: p.Start, End: p.End, Bytes: p.Bytes})
		}
		k.Topics = append(k.Topics, known)
	}
	return k
}

// mergeAgent adds what another agent alone knows.
func mergeAgent(k *knowledge, list agent.TopicList) {
	at := map[string]int{}
	for i, t := range k.Topics {
		at[t.Topic] = i
	}
	for _, t := range list.Topics {
		i, ok := at[t.Topic]
		if !ok {
			continue
		}
		for _, p := range t.Partitions {
			if p.Bytes != nil && int(p.Partition) < len(k.Topics[i].Partitions) {
				row := &k.Topics[i].Partitions[p.Partition]
				row.Start, row.End, row.Bytes = p.Start, p.End, p.Bytes
			}
		}
	}
}

func (s sources) fromSidecar(ctx context.Context, names []string) (knowledge, error) {
	c, err := client(s.cmd, *s.sidecar, sdk.WithRetry(sdk.Retry{Attempts: 1}))
	if err != nil {
		return knowledge{}, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	k := knowledge{AsOf: time.Now(), Source: "sidecar " + s.sidecarAddress()}
	var topics []api.Topic
	if len(names) == 1 {
		var t api.Topic
		t, err = c.Topic(ctx, names[0])
		topics = []api.Topic{t}
	} else {
		topics, err = c.Topics(ctx)
	}
	if errors.Is(err, &api.Error{Code: api.CodeBrokersUnavailable}) {
		var st sidecarStatus
		if told := c.Status(ctx, &st); told == nil && st.Outage != nil {
			if k = outageKnows(k.Source, st.Outage, names); len(k.Topics) > 0 {
				return k, nil
			}
		}
	}
	if err != nil {
		return k, err
	}
	for _, t := range topics {
		known := topicKnown{Topic: t.Topic, UUID: t.UUID}
		for _, p := range t.Partitions {
			row := partitionRow{Partition: p.Partition, Leader: p.Leader, Replicas: p.Replicas, ISR: p.ISR}
			if p.Start >= 0 && p.End >= 0 && len(names) == 1 {
				row.Start, row.End = &p.Start, &p.End
			}
			known.Partitions = append(known.Partitions, row)
		}
		k.Topics = append(k.Topics, known)
	}
	return k, nil
}

// outageKnows is what a sidecar remembers of the topics that its applications use
// while no broker answers it.
func outageKnows(source string, o *sidecar.OutageStatus, names []string) knowledge {
	k := knowledge{Source: source, AsOf: o.Since, Old: "no broker has answered it since; only topics that its applications use are known"}
	for _, t := range o.Topics {
		if len(names) == 1 && names[0] != t.Topic {
			continue
		}
		known := topicKnown{Topic: t.Topic}
		for p := range int32(max(t.Partitions, t.Away)) {
			known.Partitions = append(known.Partitions, partitionRow{Partition: p, Leader: -1, Replicas: []int32{}, ISR: []int32{}})
		}
		k.Topics = append(k.Topics, known)
	}
	return k
}

func (s sources) sidecarAddress() string {
	if s.cmd.Flags().Changed("sidecar") {
		return *s.sidecar
	}
	return envOr(envSidecar, *s.sidecar)
}

// getAgent asks an agent's HTTP.
func getAgent(ctx context.Context, address, path string, v any) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(address, "/")+path, nil)
	if err != nil {
		return usageError{fmt.Errorf("--agent: %w", err)}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("no agent answers (see --agent): %w", err)
	}
	defer func() { _ = resp.Body.Close() }() // it was read to its end, or has failed
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: status %s", path, resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
		return fmt.Errorf("the answer is not an agent's: %w", err)
	}
	return nil
}

// said is one line that says whose knowledge this is and how old.
func (k knowledge) said(now time.Time) string {
	text := "as " + k.Source + " knew it "
	switch age := now.Sub(k.AsOf); {
	case k.Old != "":
		text += fmt.Sprintf("%s ago, at %s: %s", age.Round(time.Second), k.AsOf.UTC().Format("15:04:05 UTC"), k.Old)
	case k.AsOf.IsZero():
		text = "as " + k.Source + " knows it from its own disk: it has not reached the coordination store since its start"
	case age < staleKnowledge:
		text = "as " + k.Source + " knows it now"
	default:
		text += fmt.Sprintf("%s ago, at %s: the coordination store has not answered since", age.Round(time.Second), k.AsOf.UTC().Format("15:04:05 UTC"))
	}
	if k.Note != "" {
		text += "\n(" + strings.ReplaceAll(k.Note, "\n", "; ") + ")"
	}
	return text
}

// staleKnowledge is the age from which knowledge is told as old.
const staleKnowledge = 10 * time.Second

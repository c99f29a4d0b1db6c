package compat

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// toolRun is one call of a tool of Kafka's.
type toolRun struct {
	class string // below org.apache.kafka.tools
	args  string // separated by spaces
	input string
	want  string // a pattern of what it prints
	// needs are requests without which the tool must say so: refused is then
	// the pattern. Without needs and with refused it is never served.
	needs   []kmsg.Key
	refused string
}

// notServed is how the tools tell that they wanted to join a group.
const notServed = `InvalidRequestException|does not support JOIN_GROUP`

const group = "consumer.group.ConsumerGroupCommand"

var groupKeys = []kmsg.Key{kmsg.OffsetCommit, kmsg.OffsetFetch, kmsg.DescribeGroups, kmsg.ListGroups, kmsg.DeleteGroups}

// The tools in the order in which they are run, on a topic that the first
// makes. The console consumer reads a partition, since by itself it subscribes;
// the two that can only subscribe must end with the reason.
var tools = []toolRun{
	{class: "TopicCommand", args: "--create --topic tools --partitions 2 --replication-factor 1 --config retention.ms=3600000", want: `Created topic tools`},
	{class: "TopicCommand", args: "--describe --topic tools", want: `PartitionCount: 2\s+ReplicationFactor: 1\s+Configs: .*retention.ms=3600000`},
	{class: "ConfigCommand", args: "--describe --topic tools", want: `retention.ms=3600000`},
	{class: "ConfigCommand", args: "--alter --topic tools --add-config retention.ms=7200000", want: `Completed updating config for topic tools`,
		needs: []kmsg.Key{kmsg.IncrementalAlterConfigs}, refused: `INCREMENTAL_ALTER_CONFIGS API is not supported`},
	{class: "ConsoleProducer", args: "--topic tools --reader-property parse.key=true --reader-property key.separator=:",
		input: "a:first\nb:second\nc:third\na:fourth\n", want: `^$`},
	{class: "GetOffsetShell", args: "--topic tools", want: `(?m)^tools:0:\d+\ntools:1:\d+$`},
	{class: "consumer.ConsoleConsumer", args: "--topic tools --partition 0 --offset earliest --timeout-ms 3000 --formatter-property print.key=true",
		want: `(?s)^a\tfirst\n.*Processed a total of \d messages`},
	{class: "consumer.ConsoleConsumer", args: "--topic tools --from-beginning --timeout-ms 10000", refused: notServed},
	{class: "VerifiableProducer", args: "--topic tools --max-messages 50 --acks -1", want: `"name":"tool_data","sent":50,"acked":50`},
	{class: "VerifiableConsumer", args: "--topic tools --group-id compat-verifiable --max-messages 50", refused: notServed},
	{class: "ProducerPerformance", args: "--topic tools --num-records 20000 --record-size 100 --throughput -1 --command-property acks=all compression.type=lz4",
		want: `(?m)^20000 records sent, .*99\.9th\.$`},
	{class: "ConsumerPerformance", args: "--topic tools --num-records 100 --timeout 10000", refused: notServed},
	{class: "EndToEndLatency", args: "--topic tools --num-records 50 --producer-acks all --record-size 100", want: `(?m)^Percentiles: 50th = \d+`,
		needs: []kmsg.Key{kmsg.OffsetCommit, kmsg.OffsetFetch}, refused: `InvalidRequestException`},
	{class: "DeleteRecordsCommand", args: "--offset-json-file testdata/delete-records.json", want: `partition: tools-0\s+low_watermark: 1`,
		needs: []kmsg.Key{kmsg.DeleteRecords}, refused: `does not support DELETE_RECORDS`},
	{class: "LogDirsCommand", args: "--describe --topic-list tools", want: `"partition":"tools-0"`,
		needs: []kmsg.Key{kmsg.DescribeLogDirs}, refused: `does not support DESCRIBE_LOG_DIRS`},
	// The group is one that TestKafkaTools commits for.
	{class: group, args: "--list", want: `(?m)^compat-java$`, needs: groupKeys, refused: `does not support`},
	{class: group, args: "--describe --group compat-java", want: `(?m)^compat-java\s+committed\s+0\s+7\s+10\s+3\s`, needs: groupKeys, refused: `does not support`},
	{class: group, args: "--reset-offsets --group compat-java --topic committed:0 --to-offset 5 --execute", want: `(?m)^compat-java\s+committed\s+0\s+5\s*$`,
		needs: groupKeys, refused: `does not support`},
	{class: group, args: "--delete --group compat-java", want: `Deletion of requested consumer groups \('compat-java'\) was successful`,
		needs: groupKeys, refused: `does not support`},
	{class: "ClusterTool", args: "cluster-id", want: `Cluster ID: [0-9a-f-]{36}`},
	{class: "BrokerApiVersionsCommand", want: `Produce\(0\): .*usable: (9|1\d)`},
	{class: "TopicCommand", args: "--alter --topic tools --partitions 3", want: `^$`},
	{class: "TopicCommand", args: "--delete --topic tools", want: `^$`},
}

// Kafka's own command-line tools take our broker for a Kafka.
func TestKafkaTools(t *testing.T) {
	needJava(t, "kafka4")
	broker := startBroker(t)
	ctx, cancel := context.WithTimeout(t.Context(), limitEach)
	defer cancel()
	keys := offered(ctx, t, broker)
	if keys[kmsg.OffsetCommit] {
		createTopic(ctx, t, broker, "committed", 1)
		if err := (franz{}).Produce(ctx, broker, "committed", "none", Records("x", "none", 10)); err != nil {
			t.Fatal(err)
		}
		if _, err := java4.ask(ctx, "commit", broker, "committed"); err != nil {
			t.Fatal(err)
		}
	}
	for _, run := range tools {
		name, _, _ := strings.Cut(run.args, " --topic")
		t.Run(run.class+" "+name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), limitEach)
			defer cancel()
			flag := "--bootstrap-server " + broker
			if run.class == "ClusterTool" { // wants its command first
				flag, run.args = "", run.args+" "+flag
			}
			out, err := tool(ctx, run.input, run.class, strings.Fields(flag+" "+run.args)...)
			want, served := run.want, run.refused == ""
			if run.needs != nil {
				served = true
				for _, k := range run.needs {
					served = served && keys[k]
				}
			}
			if !served {
				want = run.refused
			}
			out = strings.TrimSpace(out)
			switch {
			case ctx.Err() != nil:
				t.Errorf("did not end; it printed:\n%s", out)
			case served && err != nil:
				t.Errorf("%v; it printed:\n%s", err, out)
			case !regexp.MustCompile(want).MatchString(out):
				t.Errorf("want %s; it printed:\n%s", want, out)
			default:
				t.Log(regexp.MustCompile(want).FindString(out))
			}
		})
	}
}

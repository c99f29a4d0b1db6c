import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.Map;
import org.apache.storm.Config;
import org.apache.storm.LocalCluster;
import org.apache.storm.generated.KillOptions;
import org.apache.storm.generated.RebalanceOptions;
import org.apache.storm.kafka.spout.FirstPollOffsetStrategy;
import org.apache.storm.kafka.spout.KafkaSpout;
import org.apache.storm.kafka.spout.KafkaSpoutConfig;
import org.apache.storm.task.OutputCollector;
import org.apache.storm.task.TopologyContext;
import org.apache.storm.topology.OutputFieldsDeclarer;
import org.apache.storm.topology.TopologyBuilder;
import org.apache.storm.topology.base.BaseRichBolt;
import org.apache.storm.tuple.Tuple;

/**
 * A Storm topology in a local cluster whose only spout is Storm's own for
 * Kafka. It prints each tuple that it was given, and acknowledges it. Its
 * input are the commands restart (the workers, in the same topology) and stop.
 */
public class Topology {
    // What is written to System.out belongs to Storm's log.
    static final PrintStream out = System.out;

    public static class Printer extends BaseRichBolt {
        private transient OutputCollector collector;

        @Override
        public void prepare(Map<String, Object> config, TopologyContext context, OutputCollector collector) {
            this.collector = collector;
            say("prepared");
        }

        @Override
        public void execute(Tuple t) {
            say("tuple\t" + t.getIntegerByField("partition") + "\t" + t.getLongByField("offset") + "\t" + t.getStringByField("value"));
            collector.ack(t);
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {}
    }

    static synchronized void say(String line) {
        out.print(line + "\n");
        out.flush();
    }

    public static void main(String[] args) throws Exception {
        String broker = args[0], topic = args[1], group = args[2], strategy = args[3];
        System.setOut(System.err);
        KafkaSpoutConfig<String, String> spout = KafkaSpoutConfig.builder(broker, topic)
            .setProp("group.id", group)
            .setFirstPollOffsetStrategy(FirstPollOffsetStrategy.valueOf(strategy))
            .setOffsetCommitPeriodMs(500)
            .build();
        TopologyBuilder builder = new TopologyBuilder();
        builder.setSpout("spout", new KafkaSpout<>(spout), 1).setNumTasks(2);
        builder.setBolt("printer", new Printer(), 1).shuffleGrouping("spout");
        Config config = new Config();
        config.setNumWorkers(1);
        config.setMessageTimeoutSecs(60);
        try (LocalCluster cluster = new LocalCluster.Builder().withSupervisors(1)
            .withDaemonConf(Map.<String, Object>of("nimbus.monitor.freq.secs", 1, "supervisor.monitor.frequency.secs", 1)).build()) {
            cluster.submitTopology("compat", config, builder.createTopology());
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
            for (String line = in.readLine(); line != null && !line.equals("stop"); line = in.readLine()) {
                RebalanceOptions options = new RebalanceOptions();
                options.set_wait_secs(0);
                options.put_to_num_executors("spout", 2);
                cluster.rebalance("compat", options);
                say("restarting");
            }
            KillOptions now = new KillOptions();
            now.set_wait_secs(0);
            cluster.killTopologyWithOpts("compat", now);
            Thread.sleep(2_000);
        }
        say("stopped");
        System.exit(0); // Storm leaves threads behind
    }
}

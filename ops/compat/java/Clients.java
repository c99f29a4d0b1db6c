import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Kafka's own Java clients behind the line protocol that python/worker.py
 * describes: one JVM for many requests, since starting one costs seconds.
 */
public class Clients {
    static final PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    record Pair(String key, String value) {}

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] request = line.split("\t", -1);
            List<Pair> given = new ArrayList<>();
            for (int i = Integer.parseInt(request[4]); i > 0; i--) {
                String[] pair = in.readLine().split("\t", 2);
                given.add(new Pair(pair[0], pair[1]));
            }
            try {
                answer("ok", serve(request[0], request[1], request[2], request[3], given));
            } catch (Throwable t) {
                t.printStackTrace();
                answer("error", words(t));
            }
            out.flush();
        }
    }

    static void answer(String kind, String text) {
        out.print(kind + "\t" + text.replace('\n', ' ').replace('\t', ' ') + "\n");
    }

    static String words(Throwable t) {
        Throwable cause = t instanceof ExecutionException && t.getCause() != null ? t.getCause() : t;
        String text = cause.getClass().getSimpleName() + ": " + cause.getMessage();
        return cause.getCause() == null || cause.getCause() == cause ? text : text + ", caused by " + words(cause.getCause());
    }

    static String serve(String operation, String broker, String topic, String codec, List<Pair> given) throws Exception {
        switch (operation) {
            case "version": return version();
            case "produce": return produce(broker, topic, codec, given);
            case "consume": return consume(broker, topic);
            case "subscribe": return subscribe(broker, topic);
            case "commit": return commit(broker, topic);
            case "admin": return admin(broker, topic);
            default: throw new IllegalArgumentException("no operation " + operation);
        }
    }

    static String version() throws Exception {
        Properties about = new Properties();
        try (InputStream in = KafkaProducer.class.getResourceAsStream("/kafka/kafka-version.properties")) {
            about.load(in);
        }
        return about.getProperty("version");
    }

    static String produce(String broker, String topic, String codec, List<Pair> given) throws Exception {
        // acks=all and idempotence are the defaults, and so stay unsaid.
        Map<String, Object> config = Map.of("bootstrap.servers", broker, "compression.type", codec, "linger.ms", 5);
        try (var producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            List<Future<?>> sent = new ArrayList<>();
            for (Pair p : given) {
                sent.add(producer.send(new ProducerRecord<>(topic, p.key, p.value)));
            }
            producer.flush();
            for (Future<?> f : sent) {
                f.get(30, TimeUnit.SECONDS);
            }
        }
        return "";
    }

    static KafkaConsumer<String, String> consumer(String broker, String group) {
        Map<String, Object> config = new HashMap<>(Map.of("bootstrap.servers", broker, "enable.auto.commit", "false",
            "auto.offset.reset", "earliest", "default.api.timeout.ms", "20000", "fetch.max.wait.ms", "50"));
        if (group != null) {
            config.put("group.id", group);
        }
        return new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
    }

    static String consume(String broker, String topic) {
        try (var consumer = consumer(broker, null)) {
            List<TopicPartition> all = consumer.partitionsFor(topic).stream()
                .map(p -> new TopicPartition(p.topic(), p.partition())).collect(Collectors.toList());
            consumer.assign(all);
            consumer.seekToBeginning(all);
            Map<TopicPartition, Long> ends = consumer.endOffsets(all);
            long until = System.nanoTime() + 30_000_000_000L;
            while (all.stream().anyMatch(p -> consumer.position(p) < ends.get(p))) {
                if (System.nanoTime() > until) {
                    throw new IllegalStateException("not at the ends " + ends + " after 30 s");
                }
                for (ConsumerRecord<String, String> r : consumer.poll(Duration.ofMillis(200))) {
                    out.print("r\t" + r.key() + "\t" + r.value() + "\n");
                }
            }
        }
        return "";
    }

    static String subscribe(String broker, String topic) {
        try (var consumer = consumer(broker, "compat-subscribed")) {
            consumer.subscribe(List.of(topic));
            long until = System.nanoTime() + 20_000_000_000L;
            while (System.nanoTime() < until) {
                if (!consumer.poll(Duration.ofMillis(500)).isEmpty()) {
                    throw new IllegalStateException("the group was served");
                }
            }
        } catch (KafkaException e) {
            return words(e);
        }
        throw new IllegalStateException("neither refused nor served for 20 s");
    }

    static String commit(String broker, String topic) {
        TopicPartition p = new TopicPartition(topic, 0);
        OffsetAndMetadata mark = new OffsetAndMetadata(7, "{\"from\":\"java\"}");
        try (var first = consumer(broker, "compat-java")) {
            first.assign(List.of(p));
            first.commitSync(Map.of(p, mark));
        }
        try (var second = consumer(broker, "compat-java")) {
            second.assign(List.of(p));
            OffsetAndMetadata found = second.committed(Set.of(p)).get(p);
            same(found, mark, "committed");
            same(second.position(p), 7L, "position");
            return found.toString();
        }
    }

    /** Runs the steps in order and tells of each whether it worked, or why not. */
    static String admin(String broker, String topic) {
        Map<String, Object> config = Map.of("bootstrap.servers", broker, "default.api.timeout.ms", "10000",
            "request.timeout.ms", "5000");
        List<String> told = new ArrayList<>();
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        TopicPartition p = new TopicPartition(topic, 0);
        try (Admin admin = Admin.create(config)) {
            step(told, "createTopics", () -> admin.createTopics(List.of(
                new NewTopic(topic, 2, (short) 1).configs(Map.of("retention.ms", "3600000")))).all());
            step(told, "createTopics again", () -> {
                try {
                    get(admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1))).all());
                } catch (ExecutionException e) {
                    return same(e.getCause().getClass().getSimpleName(), "TopicExistsException", "the error");
                }
                throw new IllegalStateException("created twice");
            });
            step(told, "listTopics", () -> same(get(admin.listTopics().names()).contains(topic), true, "listed"));
            step(told, "describeTopics", () -> {
                var described = get(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic);
                for (TopicPartitionInfo i : described.partitions()) {
                    same(i.leader() != null && i.replicas().size() == 1 && i.isr().size() == 1, true, i.toString());
                }
                return same(described.partitions().size(), 2, "partitions");
            });
            step(told, "describeCluster", () -> same(get(admin.describeCluster().nodes()).size(), 1, "nodes"));
            step(told, "describeConfigs", () -> same(
                get(admin.describeConfigs(List.of(resource)).all()).get(resource).get("retention.ms").value(), "3600000", "retention.ms"));
            step(told, "createPartitions", () -> {
                get(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all());
                for (int i = 0; i < 100; i++) {
                    if (get(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic).partitions().size() == 3) {
                        return null;
                    }
                    Thread.sleep(100);
                }
                throw new IllegalStateException("not 3 partitions after 10 s");
            });
            try (var producer = new KafkaProducer<>(Map.<String, Object>of("bootstrap.servers", broker), new StringSerializer(), new StringSerializer())) {
                for (int i = 0; i < 10; i++) {
                    producer.send(new ProducerRecord<>(topic, 0, 1_000L * i, "k", "v" + i));
                }
            }
            step(told, "listOffsets earliest", () -> offset(admin, p, OffsetSpec.earliest(), 0));
            step(told, "listOffsets latest", () -> offset(admin, p, OffsetSpec.latest(), 10));
            step(told, "listOffsets by time", () -> offset(admin, p, OffsetSpec.forTimestamp(4_500), 5));
            step(told, "listOffsets max timestamp", () -> offset(admin, p, OffsetSpec.maxTimestamp(), 9));
            step(told, "incrementalAlterConfigs", () -> {
                get(admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(
                    new ConfigEntry("retention.ms", "7200000"), AlterConfigOp.OpType.SET)))).all());
                for (int i = 0; i < 50; i++) {
                    if (get(admin.describeConfigs(List.of(resource)).all()).get(resource).get("retention.ms").value().equals("7200000")) {
                        return null;
                    }
                    Thread.sleep(100);
                }
                throw new IllegalStateException("retention.ms is not changed after 5 s");
            });
            step(told, "deleteRecords", () -> {
                get(admin.deleteRecords(Map.of(p, RecordsToDelete.beforeOffset(4))).all());
                return offset(admin, p, OffsetSpec.earliest(), 4);
            });
            step(told, "describeLogDirs", () -> same(get(admin.describeLogDirs(
                get(admin.describeCluster().nodes()).stream().map(n -> n.id()).collect(Collectors.toList()))
                .allDescriptions()).isEmpty(), false, "no broker answered"));
            step(told, "deleteTopics", () -> {
                get(admin.deleteTopics(List.of(topic)).all());
                for (int i = 0; i < 50; i++) {
                    if (!get(admin.listTopics().names()).contains(topic)) {
                        return null;
                    }
                    Thread.sleep(100);
                }
                throw new IllegalStateException("still listed after 5 s");
            });
        }
        return String.join("; ", told);
    }

    static Object offset(Admin admin, TopicPartition p, OffsetSpec spec, long want) throws Exception {
        return same(get(admin.listOffsets(Map.of(p, spec)).all()).get(p).offset(), want, "offset");
    }

    static void step(List<String> told, String name, Callable<Object> step) {
        long began = System.nanoTime();
        String result = "ok";
        try {
            if (step.call() instanceof KafkaFuture<?> f) {
                get(f);
            }
        } catch (Throwable t) {
            result = words(t);
        }
        told.add(name + "=" + result);
        System.err.printf("%s: %s, %d ms%n", name, result, (System.nanoTime() - began) / 1_000_000);
    }

    static <T> T get(KafkaFuture<T> f) throws Exception {
        return f.get(15, TimeUnit.SECONDS);
    }

    static Object same(Object got, Object want, String what) {
        if (!want.equals(got)) {
            throw new IllegalStateException(what + ": got " + got + ", want " + want);
        }
        return null;
    }
}

"""kafka-python, the client in plain Python."""
import time

import kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.structs import OffsetAndMetadata

import worker


def produce(broker, topic, codec, records):
    producer = KafkaProducer(bootstrap_servers=broker, acks="all", enable_idempotence=True,
                             compression_type=None if codec == "none" else codec)
    try:
        sent = [producer.send(topic, key=key, value=value) for key, value in records]
        producer.flush(30)
        for future in sent:
            future.get(30)
    finally:
        producer.close(5)


def partitions(consumer, topic):
    return [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic))]


def consume(broker, topic):
    consumer = KafkaConsumer(bootstrap_servers=broker, group_id=None, check_crcs=True, fetch_max_wait_ms=50)
    try:
        all_of_it = partitions(consumer, topic)
        consumer.assign(all_of_it)
        consumer.seek_to_beginning(*all_of_it)
        ends = consumer.end_offsets(all_of_it)
        until = time.monotonic() + 30
        while any(consumer.position(p) < ends[p] for p in all_of_it):
            if time.monotonic() > until:
                raise TimeoutError(f"at {[consumer.position(p) for p in all_of_it]} of {ends} after 30 s")
            for batch in consumer.poll(200).values():
                for record in batch:
                    yield record.key, record.value
    finally:
        consumer.close()


def subscribe(broker, topic):
    consumer = KafkaConsumer(topic, bootstrap_servers=broker, group_id="compat-subscribed")
    started = time.monotonic()
    try:
        while time.monotonic() - started < 20:
            for batch in consumer.poll(500).values():
                raise AssertionError(f"the group was served: {batch}")
    except kafka.errors.KafkaError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        consumer.close(autocommit=False)
    raise TimeoutError("neither refused nor served for 20 s")


def commit(broker, topic):
    def consumer():
        return KafkaConsumer(bootstrap_servers=broker, group_id="compat-kafka-python", enable_auto_commit=False)
    first = consumer()
    try:
        partition = partitions(first, topic)[0]
        first.assign([partition])
        fields = (7, '{"from":"kafka-python"}', -1)[:len(OffsetAndMetadata._fields)]  # 2.0 has no epoch
        first.commit({partition: OffsetAndMetadata(*fields)})
    finally:
        first.close(autocommit=False)
    second = consumer()
    try:
        second.assign([partition])
        found = second.committed(partition, metadata=True)
        worker.expect((found.offset, found.metadata), (7, '{"from":"kafka-python"}'), "committed")
        worker.expect(second.position(partition), 7, "position")
        return str(found)
    finally:
        second.close(autocommit=False)


def admin(broker, topic):
    client = KafkaAdminClient(bootstrap_servers=broker)
    try:
        client.create_topics([NewTopic(name=topic, num_partitions=2, replication_factor=1,
                                       topic_configs={"retention.ms": "3600000"})])
        worker.expect(topic in client.list_topics(), True, "the topic is listed")
        described = client.describe_topics([topic])[0]
        worker.expect(len(described["partitions"]), 2, "partitions")
        client.delete_topics([topic])
        for _ in range(50):
            if topic not in client.list_topics():
                return "create, list, describe, delete"
            time.sleep(0.1)
        raise TimeoutError("the topic is still listed 5 s after its deletion")
    finally:
        client.close()


if __name__ == "__main__":
    worker.serve({"produce": produce, "consume": consume, "subscribe": subscribe, "commit": commit, "admin": admin,
                  "version": lambda _broker, _topic: kafka.__version__})

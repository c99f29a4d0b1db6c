"""confluent_kafka with a new librdkafka."""
import time

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

import worker


def produce(broker, topic, codec, records):
    failures = []
    producer = Producer({"bootstrap.servers": broker, "compression.type": codec, "acks": "all",
                         "enable.idempotence": True})
    for key, value in records:
        producer.produce(topic, key=key, value=value,
                         on_delivery=lambda error, _message: failures.append(error) if error else None)
        producer.poll(0)
    left = producer.flush(30)
    if left or failures:
        raise RuntimeError(f"{left} not delivered, failures: {failures}")


def opened(broker, group, **more):
    return Consumer({"bootstrap.servers": broker, "group.id": group, "enable.auto.commit": False, **more})


def consume(broker, topic):
    # The client insists on a group.id, also where no group is joined.
    consumer = opened(broker, "unused", **{"enable.partition.eof": True, "check.crcs": True, "fetch.wait.max.ms": 50})
    partitions = consumer.list_topics(topic, 10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
    ended = set()
    while len(ended) < len(partitions):
        message = consumer.poll(20)
        if message is None:
            raise TimeoutError("nothing arrived for 20 s")
        if message.error() is None:
            yield message.key(), message.value()
        elif message.error().code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
        elif message.error().code() != KafkaError.INVALID_REQUEST:
            # INVALID_REQUEST: it looks for a group's coordinator although it
            # only assigns, and reports once that there is none.
            raise KafkaException(message.error())
    consumer.close()


def subscribe(broker, topic):
    consumer = opened(broker, "compat-subscribed")
    consumer.subscribe([topic])
    try:
        message = consumer.poll(20)
        if message is None:
            raise TimeoutError("neither refused nor served for 20 s")
        if message.error() is None:
            raise AssertionError("the group was served")
        return str(message.error())
    finally:
        consumer.close()


def commit(broker, topic):
    metadata = '{"from":"confluent-kafka"}'
    try:
        mark = TopicPartition(topic, 0, 7, metadata=metadata)
    except TypeError:  # an old release has no metadata
        metadata, mark = None, TopicPartition(topic, 0, 7)
    first = opened(broker, "compat-confluent")
    first.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    for done in first.commit(offsets=[mark], asynchronous=False):
        if done.error:
            raise KafkaException(done.error)
    first.close()
    second = opened(broker, "compat-confluent")
    found = second.committed([TopicPartition(topic, 0)], 10)[0]
    second.close()
    worker.expect((found.offset, getattr(found, "metadata", None)), (7, metadata), "committed")
    return str(found)


def admin(broker, topic):
    # Here, since old releases lack some of them.
    from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec, ResourceType
    client = AdminClient({"bootstrap.servers": broker})

    def wait(futures):
        for future in futures.values():
            future.result(20)
    wait(client.create_topics([NewTopic(topic, 2, 1, config={"retention.ms": "3600000"})]))
    wait(client.create_partitions([NewPartitions(topic, 3)]))
    until = time.monotonic() + 10
    while len(client.list_topics(topic, 10).topics[topic].partitions) != 3:
        if time.monotonic() > until:
            raise TimeoutError("not 3 partitions after 10 s")
    resource = ConfigResource(ResourceType.TOPIC, topic)
    configs = client.describe_configs([resource])[resource].result(20)
    worker.expect(configs["retention.ms"].value, "3600000", "retention.ms")
    ends = client.list_offsets({TopicPartition(topic, 0): OffsetSpec.latest()})
    for future in ends.values():
        worker.expect(future.result(20).offset, 0, "end offset")
    wait(client.delete_topics([topic]))
    until = time.monotonic() + 5
    while topic in client.list_topics(timeout=10).topics:
        if time.monotonic() > until:
            raise TimeoutError("the topic is still listed 5 s after its deletion")
        time.sleep(0.1)
    return "create, create partitions, describe configs, offsets, delete"


def version():
    own = confluent_kafka.version()  # a tuple once
    return f"{own if isinstance(own, str) else own[0]} with librdkafka {confluent_kafka.libversion()[0]}"


if __name__ == "__main__":
    worker.serve({"produce": produce, "consume": consume, "subscribe": subscribe, "commit": commit, "admin": admin,
                  "version": lambda _broker, _topic: version()})

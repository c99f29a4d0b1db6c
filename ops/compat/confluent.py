"""Produces or consumes with confluent_kafka; records pass as key, tab, value lines."""
import sys

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition


def produce(broker, topic, codec):
    failures = []

    def delivered(error, _message):
        if error is not None:
            failures.append(error)

    producer = Producer({"bootstrap.servers": broker, "compression.type": codec, "acks": "all", "enable.idempotence": True})
    for line in sys.stdin:
        key, value = line.rstrip("\n").split("\t", 1)
        producer.produce(topic, key=key, value=value, on_delivery=delivered)
        producer.poll(0)
    left = producer.flush(30)
    if left or failures:
        sys.exit(f"{left} not delivered, failures: {failures}")


def consume(broker, topic):
    # The client insists on a group.id, also where no group is joined.
    consumer = Consumer({"bootstrap.servers": broker, "group.id": "unused", "enable.auto.commit": False,
                         "enable.partition.eof": True, "check.crcs": True,
                         "fetch.wait.max.ms": 50})
    partitions = consumer.list_topics(topic, 10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
    ended = set()
    while len(ended) < len(partitions):
        message = consumer.poll(20)
        if message is None:
            sys.exit("nothing arrived for 20 s")
        if message.error() is None:
            sys.stdout.write(f"{message.key().decode()}\t{message.value().decode()}\n")
        elif message.error().code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
        elif message.error().code() == KafkaError.INVALID_REQUEST:
            # The client looks for a group coordinator although it only assigns,
            # and reports once that there is none.
            print(message.error(), file=sys.stderr)
        else:
            sys.exit(str(message.error()))
    consumer.close()


{"produce": produce, "consume": consume}[sys.argv[1]](*sys.argv[2:])

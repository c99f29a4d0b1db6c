"""aiokafka, the client for asyncio."""
import asyncio
import logging
import time

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.structs import OffsetAndMetadata

import worker


def waits(coroutine):
    return lambda *args: asyncio.run(asyncio.wait_for(coroutine(*args), 40))


async def produce(broker, topic, codec, records):
    producer = AIOKafkaProducer(bootstrap_servers=broker, acks="all", enable_idempotence=True,
                                compression_type=None if codec == "none" else codec)
    await producer.start()
    try:
        sent = [await producer.send(topic, key=key, value=value) for key, value in records]
        await asyncio.gather(*sent)
    finally:
        await producer.stop()


async def partitions(consumer, topic):
    client = consumer._client
    await client.force_metadata_update()
    await client.fetch_all_metadata()
    return [TopicPartition(topic, p) for p in sorted(client.cluster.partitions_for_topic(topic))]


async def consume(broker, topic):
    consumer = AIOKafkaConsumer(bootstrap_servers=broker, group_id=None, auto_offset_reset="earliest",
                                enable_auto_commit=False, check_crcs=True, fetch_max_wait_ms=50)
    await consumer.start()
    found = []
    try:
        all_of_it = await partitions(consumer, topic)
        consumer.assign(all_of_it)
        ends = await consumer.end_offsets(all_of_it)
        left = {p for p in all_of_it if ends[p] > 0}
        while left:
            for partition, batch in (await consumer.getmany(*left, timeout_ms=200)).items():
                found += [(record.key, record.value) for record in batch]
                if batch and batch[-1].offset + 1 >= ends[partition]:
                    left.discard(partition)
    finally:
        await consumer.stop()
    return found


class Heard(logging.Handler):
    """Keeps the first error that the library logs."""

    def __init__(self):
        super().__init__(logging.ERROR)
        self.first = asyncio.Event()
        self.text = ""

    def emit(self, record):
        if not self.first.is_set():
            self.text = record.getMessage()
            self.first.set()


async def subscribe(broker, topic):
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=broker, group_id="compat-subscribed")
    heard = Heard()
    logging.getLogger("aiokafka").addHandler(heard)

    async def read():
        await consumer.start()
        await consumer.getone()

    # Some errors it raises, others it logs and tries again for ever.
    reading, hearing = asyncio.create_task(read()), asyncio.create_task(heard.first.wait())
    try:
        await asyncio.wait({reading, hearing}, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({reading}, timeout=1)
        if not reading.done():
            worker.expect(heard.first.is_set(), True, "an error is logged within 20 s")
            return f"logged, and tried again for ever: {heard.text}"
        error = reading.exception()
        if not isinstance(error, aiokafka.errors.KafkaError):
            raise AssertionError(f"the group was served: {error!r}")
        return f"{type(error).__name__}: {error}"
    finally:
        logging.getLogger("aiokafka").removeHandler(heard)
        for task in (reading, hearing):
            task.cancel()
        await asyncio.gather(reading, hearing, return_exceptions=True)
        await consumer.stop()


async def commit(broker, topic):
    async def opened():
        consumer = AIOKafkaConsumer(bootstrap_servers=broker, group_id="compat-aiokafka", enable_auto_commit=False)
        await consumer.start()
        consumer.assign([TopicPartition(topic, 0)])
        return consumer
    partition, mark = TopicPartition(topic, 0), OffsetAndMetadata(7, '{"from":"aiokafka"}')
    first = await opened()
    try:
        await first.commit({partition: mark})
    finally:
        await first.stop()
    second = await opened()
    try:
        worker.expect(await second.committed(partition), 7, "committed")
        worker.expect(await second.position(partition), 7, "position")
        return "7"
    finally:
        await second.stop()


async def admin(broker, topic):
    client = AIOKafkaAdminClient(bootstrap_servers=broker)
    await client.start()
    try:
        await client.create_topics([NewTopic(topic, 2, 1, topic_configs={"retention.ms": "3600000"})])
        worker.expect(topic in await client.list_topics(), True, "the topic is listed")
        described = (await client.describe_topics([topic]))[0]
        worker.expect(len(described["partitions"]), 2, "partitions")
        await client.delete_topics([topic])
        until = time.monotonic() + 5
        while topic in await client.list_topics():
            if time.monotonic() > until:
                raise TimeoutError("the topic is still listed 5 s after its deletion")
            await asyncio.sleep(0.1)
        return "create, list, describe, delete"
    finally:
        await client.close()


if __name__ == "__main__":
    worker.serve({"produce": waits(produce), "consume": waits(consume), "subscribe": waits(subscribe),
                  "commit": waits(commit), "admin": waits(admin),
                  "version": lambda _broker, _topic: aiokafka.__version__})

"""aiokafka: an idempotent and a transactional producer, and a group."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from tests.kafka.clients import WAIT_S, create_topic, positions_at, values_at

pytestmark = pytest.mark.slow


def test_aiokafka_writes_and_reads_as_a_group(topic, server):
    create_topic(server, topic, 2)

    async def body() -> list[tuple[int, bytes | None, bytes | None]]:
        async with AIOKafkaProducer(
            bootstrap_servers=server, enable_idempotence=True, compression_type="gzip"
        ) as producer:
            for number in range(100):
                await producer.send(topic, b"%d" % number, key=b"k", partition=number % 2)
        found = []
        async with AsyncExitStack() as ended, asyncio.timeout(WAIT_S):
            for _ in range(2):
                consumer = AIOKafkaConsumer(
                    topic,
                    bootstrap_servers=server,
                    group_id=topic,
                    auto_offset_reset="earliest",
                    heartbeat_interval_ms=200,
                )
                await ended.enter_async_context(consumer)
                while len(found) < 100:
                    rows = await consumer.getmany(timeout_ms=500)
                    found += [each for part in rows.values() for each in part]
                await consumer.commit()
        return [(each.partition, each.key, each.value) for each in found]

    found = asyncio.run(body())
    assert sorted(found) == sorted((n % 2, b"k", b"%d" % n) for n in range(100))
    assert positions_at(server, topic, topic, 2) == [50, 50]


def test_aiokafka_writes_transactions(topic, server):
    create_topic(server, topic)

    async def body() -> None:
        async with AIOKafkaProducer(bootstrap_servers=server, transactional_id=topic) as producer:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"committed", partition=0)
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"aborted", partition=0)
            await producer.abort_transaction()

    asyncio.run(body())
    assert values_at(server, topic, **{"isolation.level": "read_committed"}) == [b"committed"]
    level = {"isolation.level": "read_uncommitted"}
    assert values_at(server, topic, **level) == [b"committed", b"aborted"]

"""The client for asyncio: a wait does not block the loop, and a cancelled task loses no record."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial

import pytest

from isolog import aio
from isolog.errors import (
    BrokerUnavailable,
    BufferFull,
    ConsumerFenced,
    ForkedClient,
    InvalidOption,
    InvalidRequest,
    InvalidTransaction,
    IsologError,
    SchemaMismatch,
    UnknownPartition,
    UnknownTopic,
)
from spark_stream.client.reading.group_reader import GroupReader
from tests.support import NUMBERS, numbers, values

SOON_S = 30


@asynccontextmanager
async def connected(shared, topic, partitions=1, **settings):
    async with aio.connect(shared.address) as log:
        await log.create_topic(topic, partitions=partitions, **settings)
        yield log


def run(body):
    async def bounded():
        async with asyncio.timeout(4 * SOON_S):
            return await body()

    return asyncio.run(bounded())


def test_records_are_written_and_read(shared, topic):
    async def body():
        async with connected(shared, topic) as log:
            async with log.producer() as producer:
                sent = [await producer.send(topic, f"v{n}", key="k") for n in range(1_000)]
                written = await asyncio.gather(*sent)
                assert [each.offset for each in written] == list(range(1_000))
                assert (await sent[0]).offset == 0
            async with log.consumer(topic) as consumer:
                found = [each async for each in consumer.records(until="latest")]
                assert [each.value for each in found] == [f"v{n}".encode() for n in range(1_000)]
                assert consumer.position() == {(topic, 0): 1_000}
                assert await consumer.poll(0.0) == []
            assert (await log.read(topic)).num_rows == 1_000
            assert topic in await log.topics()
            await log.delete_topic(topic)
            with pytest.raises(UnknownTopic):
                await log.describe(topic)

    run(body)


def test_batches_of_a_typed_topic_are_written_and_read(shared, topic):
    async def body():
        async with connected(shared, topic, partitions=2, schema=NUMBERS) as log:
            async with log.producer() as producer:
                await producer.append(topic, numbers(0, 50), 0)
                await producer.append(topic, numbers(50, 50), 1)
                await producer.flush()
                with pytest.raises(SchemaMismatch):
                    await (await producer.append(topic, values("x")))
            async with log.consumer(topic) as consumer:
                rows = [each async for each in consumer.batches(until="latest")]
                assert sorted(n for each in rows for n in each["n"].to_pylist()) == list(range(100))
                with pytest.raises(SchemaMismatch):
                    await consumer.poll(0.0)

    run(body)


def test_an_awaited_object_is_closed_by_close(shared, topic):
    async def body():
        log = await aio.connect(shared.address)
        await log.create_topic(topic)
        producer = await log.producer(isolation="read_committed")
        assert (await (await producer.send(topic, b"v", partition=0))).partition == 0
        await producer.close()
        consumer = await log.consumer(topic)
        assert [each.value for each in await consumer.poll(SOON_S)] == [b"v"]
        await consumer.close()
        await log.close()

    run(body)


def test_invalid_arguments_are_refused_as_by_the_client(shared, topic):
    async def body():
        async with connected(shared, topic) as log:
            with pytest.raises(InvalidOption, match="colour"):
                await log.producer(colour="red")
            with pytest.raises(InvalidOption, match="acks"):
                await log.consumer(topic, acks=1)
            async with log.consumer(topic) as consumer:
                with pytest.raises(InvalidOption, match="at least 1"):
                    await consumer.poll(max_records=0)
                with pytest.raises(InvalidOption, match="no name"):
                    await consumer.commit()
                with pytest.raises(InvalidOption, match="until"):
                    await anext(consumer.records(until="noon"))
            async with log.producer() as producer:
                with pytest.raises(TypeError):
                    await producer.send(topic, 7)
                with pytest.raises(InvalidTransaction, match="transactional_id"):
                    await producer.begin_transaction()
        with pytest.raises(BrokerUnavailable):
            await aio.connect("127.0.0.1:1", timeout=0.2)

    run(body)


def test_the_error_of_a_write_is_raised_by_the_flush_unless_it_was_awaited(shared, topic):
    async def body():
        async with connected(shared, topic) as log, log.producer() as producer:
            sent = await producer.send(topic, b"x", partition=9)
            with pytest.raises(UnknownPartition):
                await producer.flush()
            with pytest.raises(UnknownPartition):
                await sent
            sent = await producer.send(topic, b"x", partition=9)
            with pytest.raises(UnknownPartition):
                await sent
            await producer.flush()

    run(body)


def test_the_loop_is_not_blocked_by_a_wait_for_room(broker, topic):
    async def body():
        async with connected(broker, topic) as log:
            settings = {"buffer_bytes": 10_000, "timeout_ms": 1_000 * SOON_S}
            async with log.producer(**settings) as producer:
                await (await producer.send(topic, b"first"))
                broker.pause()
                try:
                    writing = asyncio.create_task(write(producer, topic, 40))
                    ticks = 0
                    while ticks < 50:
                        await asyncio.sleep(0.01)
                        ticks += 1
                    assert not writing.done()
                finally:
                    broker.resume()
                await writing
            found = (await log.read(topic))["value"].to_pylist()
            assert found == [b"first", *(b"%d" % n * 500 for n in range(40))]

    run(body)


async def write(producer, topic, count):
    """Send more records than there is room for, in order."""
    for n in range(count):
        await producer.send(topic, b"%d" % n * 500)


def test_a_send_that_would_wait_for_the_last_bytes_waits_on_a_thread(broker, topic):
    async def body():
        async with connected(broker, topic) as log:
            sizes = {"buffer_bytes": 10_095, "batch_bytes": 1, "timeout_ms": 1_000 * SOON_S}
            async with log.producer(**sizes) as producer:
                await (await producer.send(topic, b"first"))
                broker.pause()
                asyncio.get_running_loop().call_later(0.5, broker.resume)
                for n in range(200):
                    await producer.send(topic, b"%092d" % n)
            assert (await log.read(topic)).num_rows == 201

    run(body)


def test_sends_that_wait_for_room_wait_for_it_at_the_same_time(broker, topic):
    async def body():
        async with (
            connected(broker, topic) as log,
            log.producer(buffer_bytes=1_000, timeout_ms=1_000) as producer,
        ):
            await (await producer.send(topic, b"first"))
            broker.pause()
            try:
                sent = [producer.send(topic, b"x" * 900) for _ in range(20)]
                async with asyncio.timeout(15):  # sequential waits would take 19 s
                    found = await asyncio.gather(*sent, return_exceptions=True)
                assert any(isinstance(each, BufferFull) for each in found)
            finally:
                broker.resume()
            with suppress(IsologError):  # their outcomes are unknown in time
                await producer.flush()

    run(body)


@pytest.mark.parametrize("pause", [0.0, 0.005, 0.02, 0.05])
def test_a_member_whose_join_is_cancelled_leaves_the_group(shared, topic, pause):
    async def body():
        async with connected(shared, topic) as log:

            async def join():
                async with aio.connect(shared.address) as mine, mine.consumer(topic, group=topic):
                    await asyncio.sleep(SOON_S)

            for _ in range(3):
                task = asyncio.create_task(join())
                await asyncio.sleep(pause)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            found = [each for each in await log.consumers() if each.name == topic]
            assert not found or found[0].group.members == ()

    run(body)


def test_a_second_waiting_task_of_a_consumer_is_refused(shared, topic):
    async def body():
        async with connected(shared, topic) as log, log.consumer(topic) as consumer:
            found = await asyncio.gather(
                *[consumer.poll(0.2) for _ in range(3)], return_exceptions=True
            )
            assert found.count([]) == 1
            assert sum(isinstance(each, InvalidRequest) for each in found) == 2

    run(body)


def test_a_forked_child_cannot_use_what_its_parent_opened(shared, topic):
    async def open_all():
        log = await aio.connect(shared.address)
        await log.create_topic(topic)
        producer, consumer = await log.producer(), await log.consumer(topic)
        await producer.append(topic, values("parent"))
        assert [each.value for each in await consumer.poll(SOON_S)] == [b"parent"]
        return log, producer, consumer

    async def use(log, producer, consumer):
        for call in (log.status, partial(producer.append, topic, values("never")), consumer.poll):
            with pytest.raises(ForkedClient):
                await call()
        return await close_all(log, producer, consumer)

    async def close_all(log, producer, consumer):
        await producer.close()
        await consumer.close()
        await log.close()
        return True

    opened = run(open_all)
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if run(partial(use, *opened)) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    run(partial(close_all, *opened))


def test_a_forked_child_leaves_the_blocks_of_its_parent_with_its_own_exception(shared, topic):
    async def fork(log, loader, consumer, leave):
        """Return the exit code of a child that leaves all blocks."""
        child, code = -1, 1
        try:
            async with log, consumer, loader, loader.transaction():
                await loader.send(topic, b"1")
                child = os.fork()
                if child == 0:
                    with pytest.raises(ForkedClient):
                        await log.status()
                    with pytest.raises(ForkedClient):
                        await loader.flush()
                    with pytest.raises(ForkedClient):
                        await consumer.commit()
                    leave()
        except SystemExit as end:
            code = end.code
        except ForkedClient:
            code = 9
        finally:
            if child == 0:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    async def body():
        async with connected(shared, topic) as log:
            for leave, code in ((partial(sys.exit, 7), 7), (lambda: None, 9)):
                opened = await aio.connect(shared.address)
                loader = await opened.producer(transactional_id=topic)
                consumer = await opened.consumer(topic, name=topic)
                assert await fork(opened, loader, consumer, leave) == code
            assert (await log.read(topic, isolation="read_committed")).num_rows == 2

    run(body)


def test_a_cancelled_poll_loses_no_record(shared, topic):
    async def body():
        async with connected(shared, topic) as log, log.consumer(topic, name=topic) as consumer:
            found, producer = [], await log.producer(isolation="read_committed")
            for n in range(60):
                poll = asyncio.create_task(consumer.poll(SOON_S, 1))
                if n % 3:
                    await asyncio.sleep(0.002 * (n % 5))
                await producer.send(topic, b"%d" % n)
                await asyncio.sleep(0.002 * (n % 4))
                if not poll.done():
                    poll.cancel()
                try:
                    found += await poll
                except asyncio.CancelledError:
                    assert consumer.position() == {(topic, 0): len(found)}
                if not n % 10:
                    await consumer.commit()
                    stored = (await log.describe_consumer(topic))[0].partitions[0].offset
                    assert stored == len(found)
            await producer.close()
            while len(found) < 60:
                found += await consumer.poll(SOON_S)
            assert [each.value for each in found] == [b"%d" % n for n in range(60)]

    run(body)


def test_close_ends_the_waiting_calls_of_a_consumer(shared, topic):
    async def body():
        async with connected(shared, topic) as log:
            consumer = await log.consumer(topic)
            waiting = asyncio.create_task(consumer.poll(None))
            await asyncio.sleep(0.05)
            await consumer.close()
            assert await waiting == []
            other = await log.consumer(topic)

            async def read():
                return [each async for each in other.records()]

            waiting = asyncio.create_task(read())
            await asyncio.sleep(0.05)
            await other.close()
            assert await waiting == []

    run(body)


def test_an_iteration_continues_after_an_early_end(shared, topic):
    async def body():
        async with connected(shared, topic) as log:
            async with log.producer() as producer:
                for n in range(20):
                    await producer.send(topic, b"%d" % n)
            async with log.consumer(topic) as consumer:
                found = []
                for _ in range(4):
                    async for each in consumer.records():
                        found.append(each)
                        if len(found) % 3 == 0:
                            break
                    assert consumer.position() == {(topic, 0): len(found)}
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.3):
                        async for each in consumer.records():
                            found.append(each)  # noqa: PERF401 (it is cancelled)
                assert [each.offset for each in found] == list(range(20))
                await consumer.seek("earliest")
                assert [each.offset async for each in consumer.records(until="latest")] == list(
                    range(20)
                )

    run(body)


@pytest.mark.quick("read_atomic")
@pytest.mark.parametrize("isolation", ["read_committed", "read_atomic"])
def test_a_transaction_is_visible_after_its_commit(shared, topic, isolation):
    async def body():
        async with (
            connected(shared, topic, partitions=2) as log,
            log.producer(transactional_id=topic) as producer,
            log.consumer(topic, isolation=isolation, name=topic) as consumer,
        ):
            async with producer.transaction():
                await producer.append(topic, values("a"), 0)
                await producer.append(topic, values("b"), 1)
                await producer.flush()
                assert await consumer.poll(0.2) == []
            found = {each.value async for each in consumer.records(timeout=1.0)}
            assert found == {b"a", b"b"}
            with suppress(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send(topic, b"c", partition=0)
                    await producer.commit_position(consumer)
                    raise ZeroDivisionError
            await producer.begin_transaction()
            await producer.send(topic, b"d", partition=0)
            await producer.commit_position(consumer)
            await producer.commit_transaction()
            found = [each.value async for each in consumer.records(timeout=1.0)]
            assert found == [b"d"]

    run(body)


@pytest.mark.parametrize("pause", [0.0, 0.001, 0.005, 0.02, 0.1])
def test_a_cancelled_transaction_leaves_the_producer_usable(shared, topic, pause):
    async def body():
        async with (
            connected(shared, topic) as log,
            log.producer(transactional_id=topic) as producer,
        ):

            async def write_all():
                async with producer.transaction():
                    for n in range(5):
                        await producer.append(topic, values(f"{n}"))

            for _ in range(5):
                task = asyncio.create_task(write_all())
                await asyncio.sleep(pause)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await write_all()
            found = (await log.read(topic, isolation="read_committed"))["value"].to_pylist()
            assert found[-5:] == [b"0", b"1", b"2", b"3", b"4"]
            assert len(found) % 5 == 0

    run(body)


def test_consumers_of_a_group_share_a_topic(shared, topic):
    async def body():
        async with connected(shared, topic, partitions=4) as log:
            found: list[bytes] = []

            async def read(consumer):
                async for each in consumer.records(timeout=SOON_S):
                    found.append(each.value)
                    if len(found) == 400:
                        return

            async with log.producer() as producer:
                for n in range(400):
                    await producer.send(topic, b"%d" % n)
            async with (
                log.consumer(topic, group=topic) as one,
                log.consumer(topic, group=topic) as two,
            ):
                tasks = [asyncio.create_task(read(each)) for each in (one, two)]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for each in tasks:
                    each.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            assert set(found) == {b"%d" % n for n in range(400)}

    run(body)


def test_seek_of_a_new_member_moves_the_group_to_a_time(shared, topic):
    async def body():
        async with connected(shared, topic) as log:
            async with log.producer() as producer:
                for second in range(4):
                    moment = datetime(2024, 5, 1, 0, 0, second, tzinfo=UTC)
                    await producer.send(topic, b"", timestamp=moment)
            async with log.consumer(topic, group=topic) as consumer:
                await consumer.seek(datetime(2024, 5, 1, 0, 0, 2))
                await consumer.commit()
            assert (await log.describe_consumer(topic))[0].partitions[0].offset == 2
            [moved] = await log.reset_consumer(topic, "earliest")
            assert (moved.before, moved.after) == (2, 0)

    run(body)


def test_positions_of_a_group_are_stored_outside_of_the_loop(shared, topic, monkeypatch):
    monkeypatch.setattr("spark_stream.client.reading.group_reader.COMMIT_S", 0.0)
    threads, store = set(), GroupReader.store

    def noted(reader, *arguments):
        threads.add(threading.current_thread())
        store(reader, *arguments)

    monkeypatch.setattr(GroupReader, "store", noted)

    async def body():
        async with connected(shared, topic) as log:
            async with log.producer() as producer:
                for n in range(20):
                    await producer.send(topic, b"%d" % n)
            async with log.consumer(topic, group=topic) as consumer:
                found = [each.offset async for each in consumer.records(timeout=1.0)]
            assert found == list(range(20))
            stored = (await log.describe_consumer(topic))[0].partitions[0].offset
            assert stored == 20

    run(body)
    assert threads
    assert threading.main_thread() not in threads


def test_a_takeover_of_the_name_raises_consumer_fenced(shared, topic):
    async def body():
        async with (
            connected(shared, topic) as log,
            log.consumer(topic, name=topic) as first,
            log.consumer(topic, name=topic),
        ):
            with pytest.raises(ConsumerFenced):
                await first.commit()

    run(body)

"""The memory limit of a broker for compressed batches, and the return of free memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from spark_stream.broker.serving import memory
from spark_stream.broker.serving.memory import FreeMemory
from spark_stream.operating_system import own_memory
from spark_stream.transport.client import ClientChannel
from spark_stream.transport.streams import TRANSPORT_ERRORS, failure_of
from spark_stream.wire.stream_messages import AppendTo, Envelope
from tests.support import BrokerProcess, eventually

MIB = 1 << 20
LIMIT = 256 * MIB
SCHEMA = pa.schema([("n", pa.int64())])
CALL_S = 60


@pytest.fixture
def bounded(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker with a limit of 256 MiB and a topic ``t`` of one partition."""
    with BrokerProcess(tmp_path / "log", conf=f"memory_bytes = {LIMIT}\n") as process:
        with process.connect() as log:
            log.create_topic("t", schema=SCHEMA)
        yield process


def rows(size: int) -> pa.RecordBatch:
    """Return a batch of ``size`` bytes, which compresses about a thousandfold."""
    return pa.record_batch([pa.repeat(pa.scalar(0, pa.int64()), size // 8)], schema=SCHEMA)


def appended(process: BrokerProcess, batch: memoryview) -> str | None:
    """Append on a separate connection. Return the error's code, or None."""
    channel = ClientChannel(process.address, timeout_s=CALL_S)
    request = AppendTo(topic="t").to_bytes()
    try:
        stream = channel.open("append", request, memoryview(SCHEMA.serialize()))
        stream.send(Envelope(partition=0).to_bytes(), batch)
        received = stream.receive(CALL_S)
        assert received is not None
        return json.loads(bytes(received.header)).get("error", {}).get("code")
    except TRANSPORT_ERRORS as error:
        return failure_of(error, process.address).code
    finally:
        channel.close()


def compressed(batch: pa.RecordBatch) -> memoryview:
    """Return the compressed batch as it is sent."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    _, found, *_ = pa.ipc.MessageReader.open_stream(sink.getvalue())
    return memoryview(found.serialize())


def greatest_memory(process: BrokerProcess) -> int:
    """Return the peak memory of the process in bytes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@pytest.mark.rule("the memory for batches", "broker/serving/memory.py", "wire/allocator.py")
def test_compressed_batches_above_the_limit_are_refused_without_using_the_memory(
    bounded: BrokerProcess,
) -> None:
    before = greatest_memory(bounded)
    bomb = compressed(rows(300 * MIB))
    with ThreadPoolExecutor(4) as clients:
        taken = list(clients.map(lambda _: appended(bounded, bomb), range(4)))
    assert set(taken) <= {"BROKER_BUSY", "BATCH_TOO_LARGE"}
    assert greatest_memory(bounded) - before < LIMIT + 64 * MIB
    assert appended(bounded, compressed(rows(MIB))) is None
    with bounded.connect() as log:
        assert log.read("t").num_rows == MIB // 8


@pytest.mark.rule(
    "the return of free memory to the system", "broker/serving/memory.py", "wire/allocator.py"
)
def test_memory_is_returned_after_large_appends(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "log") as process:
        with process.connect() as log:
            log.create_topic("t", schema=SCHEMA)
        broker = psutil.Process(process.pid)
        before = own_memory(broker)
        large = memoryview(rows(100 * MIB).serialize())
        with ThreadPoolExecutor(3) as clients:
            codes = clients.map(lambda _: appended(process, large), range(3))
            assert list(codes) == [None] * 3
        assert greatest_memory(process) - before > 150 * MIB
        eventually(lambda: own_memory(broker) - before < 100 * MIB)


def page_faults(process: BrokerProcess) -> int:
    """Return the number of page faults of the broker since its start."""
    return int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[7])


def test_memory_of_one_append_is_reused_by_the_next(tmp_path: Path) -> None:
    appends = 200
    with BrokerProcess(tmp_path / "log") as process, process.connect() as log:
        log.create_topic("t", schema=SCHEMA)
        with log.producer() as producer:
            for _ in range(20):
                producer.append("t", rows(MIB))
            producer.flush()
            before = page_faults(process)
            for _ in range(appends):
                producer.append("t", rows(MIB))
            producer.flush()
            assert (page_faults(process) - before) / appends < 60  # each append fills 256 pages


def test_a_check_that_cannot_read_the_memory_is_left_out(monkeypatch):
    def unreadable(_: psutil.Process) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(memory, "own_memory", unreadable)
    FreeMemory().release()

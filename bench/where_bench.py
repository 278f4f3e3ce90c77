"""The costs of writes, counted: processor time, changes of threads and system calls.

Counts hold on every machine and beside other load, unlike times. A voluntary context switch is a
wait of a thread. The client and the broker need one for each message that they wait for. For
a million rows, each stage of the client is measured alone. The rest is the difference to the whole.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
from msgspec import Struct

import spark_stream as isolog
from bench.records import batch_of, values
from bench.results import Results
from spark_stream.client.writing.batches import completed
from spark_stream.client.writing.partitioner import partitions_by, routed
from spark_stream.client.writing.producer import Producer
from spark_stream.datasource.values.content import measure, sum_measures
from spark_stream.datasource.writing.identity import BranchIdentity
from spark_stream.datasource.writing.transactions import WrittenRows, commit, open_branch
from spark_stream.schema.schemas import DEFAULT_SCHEMA, fitted

TOPIC: Final = "where"
_WARM_UPS: Final = 50
_TRACED_PART: Final = 10
"""A tenth of the operations is repeated under strace, which makes them slow."""
_SHOWN_MAX: Final = 5
KEYED: Final = "where-keyed"
_BATCH_ROWS: Final = 25_000
"""The sink joins Spark's batches to about this many rows of 110 bytes."""
_BATCHES: Final = 40
_TIMES: Final = 5
_PAUSE_S: Final = 0.05
"""Between two micro-batches, Spark plans for about this long."""
_PAUSES: Final = 100

Operation = Callable[[], object]


class ThreadCosts(Struct, frozen=True):
    """The costs of one thread: microseconds of processor time, and voluntary switches."""

    cpu_us: float = 0.0
    switches: int = 0


Threads = dict[tuple[int, str], ThreadCosts]
"""By thread id and name."""


def thread_costs(pid: int) -> Threads:
    """Return the costs of the threads of a process since their starts.

    The threads of this process have Python's names. Others have those of the system, which Python
    sets since 3.14.
    """
    names = {each.native_id: each.name for each in threading.enumerate()}
    costs: Threads = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            nanoseconds = int((task / "schedstat").read_text().split()[0])
            status = (task / "status").read_text()
            name = (task / "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended
            continue
        found = re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.MULTILINE)
        assert found is not None
        number = int(task.name)
        if pid == os.getpid():
            name = names.get(number, name)
        costs[number, name] = ThreadCosts(nanoseconds / 1000, int(found[1]))
    return costs


def costs_between(before: Threads, after: Threads) -> Threads:
    """Return the costs between two calls of :func:`thread_costs`, of the busy threads."""
    used: Threads = {}
    for thread, now in after.items():
        then = before.get(thread, ThreadCosts())
        costs = ThreadCosts(now.cpu_us - then.cpu_us, now.switches - then.switches)
        if costs.cpu_us or costs.switches:
            used[thread] = costs
    return used


def described(used: Threads, count: int) -> str:
    """Return the switches and the microseconds of the busiest threads for one operation."""
    busiest = sorted(used.items(), key=lambda each: -each[1].switches)[:_SHOWN_MAX]
    return ", ".join(
        f"{name} {costs.switches / count:.2f} and {costs.cpu_us / count:.0f} µs"
        for (_, name), costs in busiest
    )


class CallCounts(Struct):
    """The system calls of a process, by name. None if strace is missing or not permitted."""

    calls: dict[str, int] | None = None


def calls_of(summary: str) -> dict[str, int]:
    """Return the calls by name from the summary of ``strace -c``."""
    calls = {}
    for line in summary.splitlines():
        fields = line.split()
        if len(fields) >= 5 and fields[3].isdecimal() and fields[-1] != "total":
            calls[fields[-1]] = int(fields[3])
    return calls


@contextmanager
def counted_calls(pid: int, summary: Path) -> Iterator[CallCounts]:
    """Count the system calls of a process by strace, while the block runs."""
    counts = CallCounts()
    if shutil.which("strace") is None:
        yield counts
        return
    command = ["strace", "-f", "-c", "-o", str(summary), "-p", str(pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        attached = "attached" in tracer.stderr.readline()
        drain = threading.Thread(target=tracer.stderr.read, daemon=True)
        drain.start()
        try:
            yield counts
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.wait()
            drain.join()
    if attached:
        counts.calls = calls_of(summary.read_text())


def run(log: isolog.Log, place: Path, results: Results, operations: int) -> None:
    """One row, a transaction of one row, and the sink's writes of 20 and of a million rows."""
    one = pa.record_batch({"value": values(1)})
    log.create_topic(TOPIC, schema=one.schema, partitions=1)
    broker = log.status().pid
    with log.producer() as producer, ThreadPoolExecutor(1) as thread:

        def append() -> None:
            producer.append(TOPIC, one, partition=0).result()

        _account("one row, acknowledged", append, operations, broker, place, results)
        name = "one row, not by the main thread"
        given = name, append, operations, broker, place, results
        thread.submit(_account, *given).result()
    with log.producer(transactional_id=TOPIC) as transactional:

        def write() -> None:
            with transactional.transaction():
                transactional.append(TOPIC, one, partition=0)

        _account("a transaction of one row", write, operations // 5, broker, place, results)
    batches = MicroBatches(log, pa.record_batch({"value": values(20)}))
    _account("a micro-batch of 20 rows", batches.write, operations // 5, broker, place, results)
    for pause_s in (0.0, _PAUSE_S):
        when = f"after a pause of {1000 * pause_s:.0f} ms" if pause_s else "in a loop"
        took_ms = _p50_ms(batches.write, pause_s)
        results.add(f"a micro-batch of 20 rows, {when}, p50", "ms", measured=took_ms)
    _million(log, broker, results)
    log.delete_topic(TOPIC)
    log.delete_topic(KEYED)


class MicroBatches:
    """Micro-batches of one task by the calls of the sink, without Spark."""

    def __init__(
        self,
        log: isolog.Log,
        rows: pa.RecordBatch,
        topic: str = TOPIC,
        partition: int | None = 0,
        batches: int = 1,
    ) -> None:
        """``batches``: how often a micro-batch has the rows. ``partition``: None for keys."""
        self._log = log
        self._rows = rows
        self._topic = topic
        self._partition = partition
        self._batches = batches
        self._sink = uuid.uuid4().hex
        self._batch = 0

    def write(self) -> None:
        """Write the next micro-batch."""
        connection, topics = self._log._connection, self._log._topics
        identity = BranchIdentity(f"sink/{self._sink}", self._sink, self._sink, self._batch)
        branch = open_branch(connection, identity)
        parts = []
        with Producer(connection, topics, branch=branch) as producer:
            for _ in range(self._batches):
                producer.append(self._topic, self._rows, partition=self._partition)
                parts.append({self._topic: measure(self._rows)})
        content = sum_measures(parts)
        commit(connection, [WrittenRows(identity, content, branch)], self._batch)
        self._batch += 1


def _processes(broker: int) -> dict[str, int]:
    """Return the process ids of both sides."""
    return {"client": os.getpid(), "broker": broker}


def _costs(act: Operation, count: int, broker: int) -> dict[str, Threads]:
    """Return the costs of ``count`` operations by side."""
    processes = _processes(broker)
    before = {side: thread_costs(pid) for side, pid in processes.items()}
    for _ in range(count):
        act()
    return {side: costs_between(before[side], thread_costs(pid)) for side, pid in processes.items()}


def _account(
    name: str, act: Operation, count: int, broker: int, place: Path, results: Results
) -> None:
    for _ in range(_WARM_UPS):
        act()
    for side, used in _costs(act, count, broker).items():
        switches = sum(each.switches for each in used.values()) / count
        cpu_us = sum(each.cpu_us for each in used.values()) / count
        results.add(
            f"{name}: {side}, voluntary switches",
            "switches",
            measured=switches,
            note=described(used, count),
        )
        results.add(f"{name}: {side}, processor", "ms", measured=cpu_us / 1000)
    traced = max(1, count // _TRACED_PART)
    for side, pid in _processes(broker).items():
        with counted_calls(pid, place / "strace") as counts:
            for _ in range(traced):
                act()
        if counts.calls is not None:
            most = sorted(counts.calls.items(), key=lambda each: -each[1])[:_SHOWN_MAX]
            note = ", ".join(f"{call} {calls / traced:.1f}" for call, calls in most)
            every = sum(counts.calls.values()) / traced
            results.add(f"{name}: {side}, system calls", "calls", measured=every, note=note)


def _million(log: isolog.Log, broker: int, results: Results) -> None:
    """A million rows with keys over two partitions: nanoseconds of processor time for a row."""
    rows = batch_of("keyed", _BATCH_ROWS)
    log.create_topic(KEYED, 2)
    write = MicroBatches(log, rows, KEYED, None, _BATCHES).write
    write()
    written = _TIMES * _BATCHES * _BATCH_ROWS
    began = time.perf_counter()
    costs = _costs(write, _TIMES, broker)
    took = time.perf_counter() - began
    results.add("a million rows", "rows/s", measured=written / took)
    spent = {}
    for side, used in costs.items():
        spent[side] = 1000 * sum(each.cpu_us for each in used.values()) / written
        results.add(f"a million rows: {side}, processor", "ns a row", measured=spent[side])
    complete = fitted(completed(rows), DEFAULT_SCHEMA)
    stages = {
        "digest of the rows": lambda: measure(rows),
        "missing columns": lambda: completed(rows),
        "partitions of the keys": lambda: partitions_by(complete, ["key"], 2, 0),
        "order by partition": lambda: routed(complete, ["key"], 2, 0),
        "encoding": lambda: complete.serialize(),
    }
    alone = {stage: _cpu_ns(work) / _BATCH_ROWS for stage, work in stages.items()}
    alone["order by partition"] -= alone["partitions of the keys"]
    for stage, each in alone.items():
        results.add(f"a million rows: client, {stage}", "ns a row", measured=each)
    rest = spent["client"] - sum(alone.values())
    results.add("a million rows: client, the rest", "ns a row", measured=rest)


def _p50_ms(work: Operation, pause_s: float) -> float:
    took = []
    for _ in range(_PAUSES):
        time.sleep(pause_s)
        began = time.perf_counter()
        work()
        took.append(1000 * (time.perf_counter() - began))
    return sorted(took)[_PAUSES // 2]


def _cpu_ns(work: Operation) -> float:
    """Return the least processor time of some calls."""
    work()
    took = []
    for _ in range(_TIMES):
        began = time.process_time_ns()
        work()
        took.append(time.process_time_ns() - began)
    return min(took)

"""``isolog bench``: measure the throughput and the latencies of a cluster under load."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from spark_stream.cli.options import (
    Bootstrap,
    Isolation,
    Listing,
    LogPath,
    Output,
    completed,
    log,
    note,
)
from spark_stream.cli.output.texts import console, plain_table
from spark_stream.cli.terminal import bar
from spark_stream.errors import InvalidOption, IsologError
from spark_stream.structs import INT64_MAX
from spark_stream.wire.limits import BATCH_BYTES_MAX

if TYPE_CHECKING:
    from spark_stream.cli.operating.load import LoadRun
    from spark_stream.client.log import Log
    from spark_stream.wire.topic_messages import TopicDescription

_POLL_S: Final = 0.1
_SECONDS: Final = 10.0
_TEMPORARY: Final = "isolog-bench-"
_LOAD: Final = "The load"


def bench(
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    topic: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Topic with the columns of Kafka. The records stay in it."
            " Default: a temporary topic, deleted at the end.",
            show_default=False,
            autocompletion=completed(lambda log: log.topics()),
        ),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Partitions of the temporary topic. Default: 4.",
            show_default=False,
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Replicas of the temporary topic. Default: like other new topics.",
            show_default=False,
        ),
    ] = None,
    records: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=INT64_MAX,
            help="Stop after this many records.",
            show_default=False,
            rich_help_panel=_LOAD,
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            min=0.1,
            help="Stop after this time. Default: 10.",
            show_default=False,
            rich_help_panel=_LOAD,
        ),
    ] = None,
    record_bytes: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=BATCH_BYTES_MAX,
            help="Size of the value of a record.",
            rich_help_panel=_LOAD,
        ),
    ] = 100,
    batch_rows: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=1 << 20, help="Records per batch.", rich_help_panel=_LOAD
        ),
    ] = 1000,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            min=0.001,
            help="Records per second of all producers together. Without it the latencies include"
            " the wait in full buffers.",
            show_default=False,
            rich_help_panel=_LOAD,
        ),
    ] = None,
    producers: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=256, help="Number of producers.", rich_help_panel=_LOAD
        ),
    ] = 1,
    consumers: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=256,
            help="Number of consumers, which share the partitions.",
            rich_help_panel=_LOAD,
        ),
    ] = 1,
    isolation: Isolation = "read_uncommitted",
    transactions: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Write in transactions of this many batches. 0: no transactions.",
            rich_help_panel=_LOAD,
        ),
    ] = 0,
    output: Output = Listing.TABLE,
) -> None:
    """Write to a topic and read from it. Print the throughput and percentiles of the latencies.

    Acknowledgements wait for the in-sync replicas at all isolation levels except read_uncommitted.
    Ctrl-C stops the load early and prints the results so far. All threads belong to this process.
    To find the limit of a cluster, start several commands on several machines.

    \b
    isolog bench --bootstrap localhost:9092
    isolog bench --seconds 30 --rate 50000 --isolation read_committed
    isolog bench --records 10000000 --producers 4 --consumers 4 --output json
    """
    from spark_stream.cli.operating.load import LoadPlan, LoadRun
    from spark_stream.client.options import level

    if records is not None and seconds is not None:
        raise InvalidOption("--records and --seconds exclude each other", hint="Give one of them.")
    if topic is not None and (partitions is not None or replication_factor is not None):
        raise InvalidOption(
            "--partitions and --replication-factor are those of the temporary topic",
            hint="Leave them out, or leave out --topic.",
        )
    if batch_rows * (record_bytes + 16) > BATCH_BYTES_MAX:
        raise InvalidOption(
            f"{batch_rows} records of {record_bytes} bytes are more than a batch may have"
            f" ({BATCH_BYTES_MAX} bytes)",
            hint="Lower --batch-rows or --record-bytes.",
        )
    chosen = level(isolation)
    if seconds is None and records is None:
        seconds = _SECONDS
    with (
        log(bootstrap, path) as opened,
        _topic(opened, topic, partitions, replication_factor) as found,
    ):
        if consumers > len(found.partitions):
            raise InvalidOption(
                f"{consumers} consumers cannot share {len(found.partitions)} partitions",
                hint="Give fewer --consumers, or more --partitions.",
            )
        plan = LoadPlan(
            topic=found.name,
            records=records,
            seconds=seconds,
            record_bytes=record_bytes,
            batch_rows=batch_rows,
            producers=producers,
            consumers=consumers,
            isolation=chosen,
            transaction_batches=transactions,
            rate=rate,
        )
        starts = {each.partition: each.log_end_offset or 0 for each in found.partitions}
        load = LoadRun(opened, plan, starts)
        _run(load)
    facts = _facts(load)
    _show(facts, output)
    if load.tally.failure is not None:
        raise load.tally.failure


@contextmanager
def _topic(
    opened: Log, name: str | None, partitions: int | None, replication_factor: int | None
) -> Iterator[TopicDescription]:
    """Return the topic of the load. Delete it afterwards if it was created here."""
    from spark_stream.schema.schemas import is_default

    if name is not None:
        found = opened.describe(name)
        if not is_default(found.schema):
            raise InvalidOption(
                f"topic {name!r} is typed, and bench writes keys and values",
                hint="Name a topic that was created without a schema, or leave out --topic.",
            )
        yield found
        return
    brokers = opened.cluster().brokers
    alive = sum(each.alive for each in brokers)
    if replication_factor is None and alive < len(brokers):
        replication_factor = max(1, min(3, alive))  # the default includes dead brokers
    made = opened.create_topic(
        f"{_TEMPORARY}{uuid.uuid4().hex[:12]}", partitions or 4, replication_factor
    )
    try:
        yield made
    finally:
        with suppress(KeyboardInterrupt):
            try:
                opened.delete_topic(made.name)
            except IsologError as error:
                note(f"failed to delete topic {made.name}: {error.message}")


def _run(load: LoadRun) -> None:
    """Run the load to its end. Ctrl-C stops it, a second Ctrl-C also drops unsettled batches."""
    plan, tally = load.plan, load.tally
    began, shown = time.monotonic(), 0
    load.start()
    with bar(f"to {plan.topic}") as progress:
        while load.is_running:
            try:
                time.sleep(_POLL_S)
            except KeyboardInterrupt:
                if tally.stopping.is_set():
                    raise
                note("stopping: waiting for acknowledgements")
                load.stop()
            if plan.seconds is not None:
                part = (time.monotonic() - began) / plan.seconds
            else:
                part = tally.written / (plan.records or 1)
            progress.advance(tally.written - shown, min(1.0, part))
            shown = tally.written


def _facts(load: LoadRun) -> dict[str, Any]:
    plan, tally = load.plan, load.tally
    writing_s = max(1e-9, tally.last_written - tally.first_written)
    reading_s = max(1e-9, tally.last_read - tally.first_written)
    facts: dict[str, Any] = {
        "topic": plan.topic,
        "isolation": str(plan.isolation),
        "record_bytes": plan.record_bytes,
        "batch_rows": plan.batch_rows,
        "producers": plan.producers,
        "consumers": plan.consumers,
        "written": _rates(tally.written, plan.record_bytes, writing_s),
        "acknowledgement_ms": tally.acknowledged.summary(),
    }
    if plan.transaction_batches:
        facts["transactions"] = tally.transactions
        facts["commit_ms"] = tally.committed.summary()
    if plan.consumers:
        facts["read"] = _rates(tally.read, plan.record_bytes, reading_s)
        facts["end_to_end_ms"] = tally.seen.summary()
    if tally.failure is not None:
        facts["error"] = tally.failure.to_wire()
    return facts


def _rates(records: int, record_bytes: int, seconds: float) -> dict[str, float]:
    seconds = seconds if records else 0.0
    per_second = records / seconds if seconds else 0.0
    return {
        "records": records,
        "seconds": round(seconds, 3),
        "records_per_second": round(per_second, 1),
        "bytes_per_second": round(per_second * record_bytes, 1),
    }


def _show(facts: dict[str, Any], output: Listing) -> None:
    if output is Listing.JSON:
        print(json.dumps(facts, indent=2))
        return
    screen = console()
    for name in ("written", "read"):
        if name in facts:
            each = facts[name]
            screen.print(
                f"{name:8} {each['records']:,} records in {each['seconds']:.2f} s:"
                f" {each['records_per_second']:,.0f} records/s,"
                f" {each['bytes_per_second'] / 1e6:,.1f} MB/s"
            )
    if "transactions" in facts:
        screen.print(f"committed {facts['transactions']:,} transactions")
    table = plain_table("latency, ms")
    shown = [
        (title, facts[name])
        for title, name in (
            ("acknowledgement", "acknowledgement_ms"),
            ("commit", "commit_ms"),
            ("end to end", "end_to_end_ms"),
        )
        if name in facts
    ]
    for name in shown[0][1]:
        table.add_column(name, justify="right")
    for title, found in shown:
        table.add_row(title, *(f"{value:,.2f}" for value in found.values()))
    screen.print(table)

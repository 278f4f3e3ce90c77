"""``isolog top``: live view of a cluster in a terminal, from the public calls of its brokers."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from spark_stream.cli.options import Bootstrap, Listing, LogPath, Output, log
from spark_stream.cli.output.texts import (
    as_json,
    console,
    duration,
    plain_table,
    size_text,
    state_text,
    visible,
    wall_ms,
)
from spark_stream.consistency.isolation import ReaderState
from spark_stream.errors import IsologError, PermissionDenied, StorageFailure, UnknownTopic
from spark_stream.operating_system import optional

if TYPE_CHECKING:
    from spark_stream.cli.operating.top_frames import (
        ClusterFrame,
        ClusterSample,
        ConsumerLine,
        Flow,
    )
    from spark_stream.client.log import Log
    from spark_stream.wire.topic_messages import TopicDescription

_INTERVAL_S: Final = 2.0
_ONCE_S: Final = 1.0
_CALLS_MAX: Final = 8
_LINES: Final = 10
_KIB: Final = 1024
_MISSING: Final = "-"

T = TypeVar("T")


def top(
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print once, after two samples for the rates.")
    ] = False,
    interval: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            min=0.1,
            max=3600,
            help="Seconds between two samples. Default: 2, or 1 with --once.",
            show_default=False,
        ),
    ] = None,
    output: Output = Listing.TABLE,
) -> None:
    """Show brokers, topics by rate, problems, open transactions, and readers with their lag.

    Rates count written records. A reader is stalled if records are available and its program has
    not requested any for two minutes, and gone if it ended without being closed. The first
    undecided transaction of a partition holds back readers under read_committed. Press q or Ctrl-C
    to stop.

    \b
    isolog top --bootstrap localhost:9092
    isolog top --once --output json | jq '.consumers[] | select(.state == "stalled")'
    """
    from spark_stream.cli.operating.top_frames import frame_of

    pause_s = interval or (_ONCE_S if once else _INTERVAL_S)
    with log(bootstrap, path) as opened:
        try:
            samples = [sample_cluster(opened)]
            if once:
                time.sleep(pause_s)
                samples.append(sample_cluster(opened))
                print_frame(frame_of(samples), None, output)
            elif output is Listing.JSON or not sys.stdout.isatty():
                _follow(opened, samples, pause_s, partial(print_frame, output=output))
            else:
                _watch(opened, samples, pause_s)
        except KeyboardInterrupt:
            pass


def sample_cluster(opened: Log) -> ClusterSample:
    """Request all parts of a frame from the cluster."""
    from spark_stream.cli.operating.top_frames import ClusterSample

    denied: list[str] = []
    unavailable: list[str] = []

    def request(part: str, call: Callable[..., Iterable[T]], *given: Log) -> tuple[T, ...]:
        try:
            return tuple(call(*given))
        except PermissionDenied:
            denied.append(part)
        except StorageFailure:  # of the metadata store. The problems of the cluster have its text.
            unavailable.append(part)
        return ()

    at = time.monotonic()
    return ClusterSample(
        at=at,
        now_ms=wall_ms(),
        cluster=opened.cluster(),
        topics=request("topics", _topics, opened),
        transactions=request("transactions", opened.transactions),
        consumers=request("consumers", opened.consumers),
        denied=tuple(denied),
        unavailable=tuple(unavailable),
    )


def _topics(opened: Log) -> list[TopicDescription]:
    def describe(name: str) -> TopicDescription | None:
        try:
            return opened.describe(name)
        except UnknownTopic:  # deleted since the list was read
            return None

    with ThreadPoolExecutor(_CALLS_MAX) as calls:
        return [each for each in calls.map(describe, opened.topics()) if each is not None]


def _follow(
    opened: Log,
    samples: list[ClusterSample],
    pause_s: float,
    show: Callable[[ClusterFrame, str | None], None],
) -> None:
    """Show a frame after each sample, without end. After an error show the error, and retry.

    Operators watch a cluster especially while it is unavailable.
    """
    from spark_stream.cli.operating.top_frames import frame_of
    from spark_stream.client.trends import WINDOW_S

    while True:
        time.sleep(pause_s)
        try:
            samples.append(sample_cluster(opened))
        except IsologError as error:
            show(frame_of(samples), error.message)
            continue
        while samples[-1].at - samples[0].at > max(WINDOW_S, 2 * pause_s):
            del samples[0]
        show(frame_of(samples), None)


def _watch(opened: Log, samples: list[ClusterSample], pause_s: float) -> None:
    from spark_stream.cli.operating.top_frames import frame_of

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # also restores the terminal
    first = rendered(frame_of(samples))
    with Live(first, console=console(), screen=True, auto_refresh=False) as live, _ended_by_q():
        _follow(
            opened,
            samples,
            pause_s,
            lambda frame, error: live.update(rendered(frame, error), refresh=True),
        )


@contextmanager
def _ended_by_q() -> Iterator[None]:
    """Interrupt the command when q is typed, even while the cluster does not answer."""
    terminal = optional("termios")
    if terminal is None or not sys.stdin.isatty():
        yield
        return
    keyboard = sys.stdin.fileno()
    before = terminal.tcgetattr(keyboard)
    try:
        import_module("tty").setcbreak(keyboard)
        threading.Thread(target=_interrupt_at_q, args=(keyboard,), daemon=True).start()
        yield
    finally:
        terminal.tcsetattr(keyboard, terminal.TCSADRAIN, before)


def _interrupt_at_q(keyboard: int) -> None:
    with suppress(OSError):  # the terminal was closed
        while (typed := os.read(keyboard, 64)) and b"q" not in typed.lower():
            pass
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def print_frame(frame: ClusterFrame, error: str | None, output: Listing) -> None:
    """Print a frame. ``error``: why there is no newer frame."""
    if output is Listing.JSON:
        print(json.dumps(as_json(frame) | {"error": error}), flush=True)
    else:
        console().print(rendered(frame, error))
        sys.stdout.flush()


def rendered(frame: ClusterFrame, error: str | None = None) -> RenderableType:
    """Render a frame for at least 80 columns. ``error``: why there is no newer frame."""
    parts: list[RenderableType] = []
    moment = datetime.fromtimestamp(frame.now_ms // 1000, UTC).strftime("%H:%M:%S UTC")
    alive = f"brokers {frame.brokers_alive} of {len(frame.brokers)} alive"
    parts.append(Text(f"cluster {visible(frame.cluster_id)}  {moment}", style="bold"))
    parts.append(
        Text(
            f"{alive}  topics {len(frame.topics)}  partitions {frame.partitions}"
            f"  written {_records(frame.written)}/s, {_size(frame.written)}/s"
        )
    )
    if error is not None:
        parts.append(Text(f"the cluster did not answer: {visible(error)}", style="bold red"))
    parts += [Text(visible(each), style="red") for each in frame.problems]
    if not frame.problems:
        text = "all partitions have a leader, and all replicas are in sync"
        parts.append(Text(text, style="green"))
    parts += [Text(visible(each), style="red") for each in frame.reader_problems]
    parts += [Text(f"no permission for {each}", style="yellow") for each in frame.denied]
    parts += [
        Text(f"the metadata store does not return {each}", style="yellow")
        for each in frame.unavailable
    ]
    parts += [Text(), _brokers(frame)]
    if frame.topics:
        parts += [Text(), _topics_table(frame)]
    if frame.transactions:
        parts += [Text(), _transactions(frame)]
    if frame.consumers:
        parts += [Text(), _consumers(frame)]
    return Group(*parts)


def _table(first: str, *others: str, numbers: int) -> Table:
    """Return a table whose last ``numbers`` columns are numbers."""
    table = plain_table()
    table.add_column(first, overflow="fold", max_width=32)
    for place, name in enumerate(others):
        is_number = place >= len(others) - numbers
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    return table


def _more(table: Table, count: int) -> Table:
    if count > _LINES:
        table.add_row(f"and {count - _LINES} more")
    return table


def _brokers(frame: ClusterFrame) -> Table:
    names = ("state", "leads", "replicas", "in sync", "records/s", "written/s")
    table = _table("broker", *names, numbers=5)
    # Dead brokers come first, so that they are not left out.
    lines = sorted(frame.brokers, key=lambda each: not each.state.startswith("dead"))
    for each in lines[:_LINES]:
        dead = each.state.startswith("dead")
        table.add_row(
            Text(visible(each.id)),
            Text(each.state, style="red" if dead else ""),
            str(each.leads),
            str(each.replicas),
            str(each.in_sync),
            _records(each.written),
            _size(each.written),
        )
    return _more(table, len(lines))


def _topics_table(frame: ClusterFrame) -> Table:
    table = _table("topic", "partitions", "records/s", "written/s", "size", numbers=4)
    for each in frame.topics[:_LINES]:
        table.add_row(
            Text(visible(each.name)),
            str(each.partitions),
            _records(each.written),
            _size(each.written),
            size_text(each.size),
        )
    return _more(table, len(frame.topics))


def _transactions(frame: ClusterFrame) -> Table:
    names = ("state", "writes to", "age", "records held back")
    table = _table("transaction", *names, numbers=2)
    for each in frame.transactions[:_LINES]:
        state = f"{each.state}, overdue" if each.overdue else each.state
        places = ", ".join(each.places[:2])
        if len(each.places) > 2:
            places += f" and {len(each.places) - 2} more"
        table.add_row(
            Text(visible(each.transactional_id)),
            Text(state, style="red" if each.overdue else ""),
            Text(visible(places) or _MISSING),
            duration(each.age_s),
            Text(str(each.held_back), style="yellow" if each.held_back else ""),
        )
    return _more(table, len(frame.transactions))


_STYLES: Final = {
    ReaderState.STALLED: "red",
    ReaderState.GONE: "red",
    ReaderState.WAITING_AT_LSO: "yellow",
}


def _consumers(frame: ClusterFrame) -> Table:
    table = _table("consumer", "kind", "isolation", "state", "lag", "held back", numbers=2)
    for each in frame.consumers[:_LINES]:
        table.add_row(
            Text(visible(each.name)),
            each.kind,
            each.isolation or _MISSING,
            Text(_state_text(each), style=_STYLES.get(each.state, "")),
            _MISSING if each.lag is None else f"{each.lag:,}",
            f"{each.held_back:,}",
        )
    return _more(table, len(frame.consumers))


def _records(flow: Flow) -> str:
    return _MISSING if flow.records is None else f"{flow.records:,.0f}"


def _size(flow: Flow) -> str:
    if flow.bytes is None:
        return _MISSING
    if _KIB <= flow.bytes < _KIB * _KIB:
        return f"{flow.bytes / _KIB:.1f} KiB"
    return size_text(round(flow.bytes))


def _state_text(line: ConsumerLine) -> str:
    from spark_stream.client.trends import LagTrend

    if line.state is ReaderState.WAITING_AT_LSO and line.waits_for:
        return f"waiting for {visible(', '.join(line.waits_for))}"
    text = state_text(line.state)
    is_behind = line.state is ReaderState.CATCHING_UP and line.trend is LagTrend.GROWS
    return f"{text}, lag grows" if is_behind else text

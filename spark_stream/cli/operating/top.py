"""``isolog top``: the cluster live in a terminal, by what its brokers tell any client."""

from __future__ import annotations

import json
import os
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Final, TypeVar

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from spark_stream.cli.operating.frames import ClusterFrame, ConsumerLine, Flow, Look, frame_of
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
from spark_stream.client.log import Log
from spark_stream.client.trends import WINDOW_S, LagTrend
from spark_stream.consistency.isolation import ReaderState
from spark_stream.errors import IsologError, PermissionDenied, StorageFailure, UnknownTopic
from spark_stream.wire.topic_messages import TopicDescription

_INTERVAL_S: Final = 2.0
_ONCE_S: Final = 1.0
_CALLS: Final = 8  # at once
_LINES: Final = 10
_KIB: Final = 1024
_MISSING: Final = "-"

T = TypeVar("T")


def top(
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print one frame. It takes two looks, for the rates.")
    ] = False,
    interval: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            min=0.1,
            max=3600,
            help="Seconds between two looks: 2, or 1 with --once.",
            show_default=False,
        ),
    ] = None,
    output: Output = Listing.TABLE,
) -> None:
    """Show brokers, topics by rate, what is amiss, open transactions, and readers with their lag.

    Rates count written records. A reader is stalled if its program has not requested records for
    two minutes and there are some, and gone if it ended without being closed. The first transaction
    that is undecided in a partition holds readers under read_committed back. In a terminal, q or
    Ctrl-C ends it.

    \b
    isolog top --bootstrap localhost:9092
    isolog top --once --output json | jq '.consumers[] | select(.state == "stalled")'
    """
    pause_s = interval or (_ONCE_S if once else _INTERVAL_S)
    with log(bootstrap, path) as opened:
        try:
            looks = [look_at(opened)]
            if once:
                time.sleep(pause_s)
                looks.append(look_at(opened))
                print_frame(frame_of(looks), None, output)
            elif output is Listing.JSON or not sys.stdout.isatty():
                _follow(opened, looks, pause_s, partial(print_frame, output=output))
            else:
                _watch(opened, looks, pause_s)
        except KeyboardInterrupt:
            pass


def look_at(opened: Log) -> Look:
    """Ask the cluster for all that a frame shows."""
    denied: list[str] = []
    unavailable: list[str] = []

    def ask(part: str, call: Callable[..., Iterable[T]], *given: Log) -> tuple[T, ...]:
        try:
            return tuple(call(*given))
        except PermissionDenied:
            denied.append(part)
        except StorageFailure:  # the metadata store: a problem of the cluster has its text
            unavailable.append(part)
        return ()

    at = time.monotonic()
    return Look(
        at=at,
        now_ms=wall_ms(),
        cluster=opened.cluster(),
        topics=ask("topics", _topics, opened),
        transactions=ask("transactions", opened.transactions),
        consumers=ask("consumers", opened.consumers),
        denied=tuple(denied),
        unavailable=tuple(unavailable),
    )


def _topics(opened: Log) -> list[TopicDescription]:
    def describe(name: str) -> TopicDescription | None:
        try:
            return opened.describe(name)
        except UnknownTopic:  # deleted since it was listed
            return None

    with ThreadPoolExecutor(_CALLS) as calls:
        return [each for each in calls.map(describe, opened.topics()) if each is not None]


def _follow(
    opened: Log, looks: list[Look], pause_s: float, show: Callable[[ClusterFrame, str | None], None]
) -> None:
    """Show a frame after each look, without end. An error is shown, and the next look tries again.

    The cluster may be out of reach for a while, which is when somebody watches it.
    """
    while True:
        time.sleep(pause_s)
        try:
            looks.append(look_at(opened))
        except IsologError as error:
            show(frame_of(looks), error.message)
            continue
        while looks[-1].at - looks[0].at > max(WINDOW_S, 2 * pause_s):
            del looks[0]
        show(frame_of(looks), None)


def _watch(opened: Log, looks: list[Look], pause_s: float) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the terminal is put back then, too
    first = drawn(frame_of(looks))
    with Live(first, console=console(), screen=True, auto_refresh=False) as live, _ended_by_q():
        _follow(
            opened,
            looks,
            pause_s,
            lambda frame, error: live.update(drawn(frame, error), refresh=True),
        )


@contextmanager
def _ended_by_q() -> Iterator[None]:
    """Interrupt the command when q is typed, also while the cluster does not answer."""
    if not sys.stdin.isatty():
        yield
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        threading.Thread(target=_interrupt_at_q, args=(keyboard,), daemon=True).start()
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _interrupt_at_q(keyboard: int) -> None:
    with suppress(OSError):  # the terminal is gone
        while (typed := os.read(keyboard, 64)) and b"q" not in typed.lower():
            pass
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def print_frame(frame: ClusterFrame, error: str | None, output: Listing) -> None:
    """Print a frame; ``error``: why it is an old one."""
    if output is Listing.JSON:
        print(json.dumps(as_json(frame) | {"error": error}), flush=True)
    else:
        console().print(drawn(frame, error))
        sys.stdout.flush()


def drawn(frame: ClusterFrame, error: str | None = None) -> RenderableType:
    """Return a frame for a terminal of 80 columns or more; ``error``: why it is an old one."""
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
    parts += [Text(f"you may not see {each}", style="yellow") for each in frame.denied]
    parts += [
        Text(f"{each} cannot be read from the metadata store", style="yellow")
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


def _more(table: Table, there: int) -> Table:
    if there > _LINES:
        table.add_row(f"and {there - _LINES} more")
    return table


def _brokers(frame: ClusterFrame) -> Table:
    names = ("state", "leads", "replicas", "in sync", "records/s", "written/s")
    table = _table("broker", *names, numbers=5)
    # Dead brokers are never among those that are left out.
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
    if line.state is ReaderState.WAITING_AT_LSO and line.waits_for:
        return f"waiting for {visible(', '.join(line.waits_for))}"
    text = state_text(line.state)
    is_behind = line.state is ReaderState.CATCHING_UP and line.trend is LagTrend.GROWS
    return f"{text}, lag grows" if is_behind else text

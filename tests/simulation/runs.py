"""Runs by their seeds: one, many, and the smallest that still fails."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from tests.simulation.clients import CLIENTS
from tests.simulation.faults import FAULTS
from tests.simulation.form import Form, draw
from tests.simulation.invariants.base import Broken, View
from tests.simulation.recording import Recorder, read_everything
from tests.simulation.world import World

ACTORS: Final = {**CLIENTS, **FAULTS}
_ORDERS: Final = 12  # orders of events that are tried with fewer actors


class Finding(Struct, frozen=True):
    """A run in which something did not hold."""

    form: Form
    error: BaseException
    events: int
    story: tuple[str, ...] = ()

    @property
    def broken(self) -> str:
        """The name of the violated invariant, or of the exception."""
        return getattr(self.error, "invariant", type(self.error).__name__)


class Ran(Struct, frozen=True):
    """A finished run."""

    events: int
    finding: Finding | None = None


def run(form: Form, *, tells: bool = False, histories: Path | None = None) -> Ran:
    """One run, from its form. Its history is written into the folder ``histories``."""
    recorders: list[Recorder] = []

    def watch(view: View) -> Recorder:
        assert histories is not None
        recorders.append(Recorder(view, histories / f"seed-{form.seed}.jsonl", form.seed))
        return recorders[0]

    world = World(form, tells=tells, watch=None if histories is None else watch)
    with _quiet():
        try:
            world.begin(ACTORS)
            world.run()
            events = world.schedule.events
            if recorders:
                world.finish("final", read_everything(world))
        except (Exception, Broken) as error:
            story = tuple(world.story or ())
            events = world.schedule.events
            return Ran(events, Finding(form, error, events, story))
        finally:
            for each in recorders:
                each.close()
    return Ran(events)


def shrink(finding: Finding) -> Finding:
    """The same finding with as few clients and faults as are needed, and its story."""
    best = finding
    progress = True
    while progress:
        progress = False
        for name in best.form.actors:
            smaller = _found_again(best.form.without([name]), finding.broken)
            if smaller is not None:
                best, progress = smaller, True
                break
    return run(best.form, tells=True).finding or best


def _found_again(form: Form, broken: str) -> Finding | None:
    for order in range(_ORDERS):
        found = run(replace(form, order=order)).finding
        if found is not None and found.broken == broken:
            return found
    return None


def find(seeds: Iterable[int], faults: Collection[str] = ()) -> tuple[int, Finding | None]:
    """Runs one seed after the other until one fails: the events of all, and the finding.

    ``faults``: leave out runs without one of these kinds of faults. None: leave out no run.
    """
    events = 0
    for form in map(draw, seeds):
        if faults and not form.has_fault(faults):
            continue
        ran = run(form)
        events += ran.events
        if ran.finding is not None:
            return events, ran.finding
    return events, None


def search(seeds: range, histories: Path | None = None) -> tuple[int, list[Form]]:
    """The events of all these runs, and the forms of those that failed."""
    events, failed = 0, []
    for seed in seeds:
        ran = run(draw(seed), histories=histories)
        events += ran.events
        if ran.finding is not None:
            failed.append(ran.finding.form)
    return events, failed


@contextmanager
def _quiet() -> Iterator[None]:
    """Disable logging within the block: the faults of a run are intended."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)

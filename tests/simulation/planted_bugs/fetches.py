"""Readers: requested ranges, and the meaning of answers."""

from __future__ import annotations

from typing import Any

from spark_stream.client.reading.core import FetchCore, RangeCore
from spark_stream.consistency.replication.epochs import NO_LINEAGE
from tests.simulation.planted_bugs.planting import Patch, bug


@bug
def a_lost_call_is_not_asked_again(patch: Patch) -> None:
    """Its range hangs."""
    patch.setattr(FetchCore, "on_lost", lambda self, call, error, now: None)


@bug
def a_range_whose_call_ended_is_not_asked_for_again(patch: Patch) -> None:
    """Its reader hangs."""

    def ended(self: Any, call: int) -> None:
        self._over(call)

    patch.setattr(FetchCore, "on_ended", ended)


@bug
def a_reader_passes_over_a_record(patch: Patch) -> None:
    original = RangeCore.on_received

    def received(self: Any, following: int, *rest: Any) -> bool:
        return original(self, following + 1, *rest)

    patch.setattr(RangeCore, "on_received", received)


@bug
def a_reader_that_got_records_stays_where_it_was(patch: Patch) -> None:
    original = RangeCore.on_received

    def received(self: Any, following: int, lineage: Any, rows: int, *rest: Any) -> bool:
        before = self.position
        found = original(self, following, lineage, rows, *rest)
        if rows:
            self.position = before
        return found

    patch.setattr(RangeCore, "on_received", received)


@bug
def a_reader_forgets_whose_records_it_has(patch: Patch) -> None:
    original = RangeCore.on_received

    def received(self: Any, following: int, lineage: Any, *rest: Any) -> bool:
        return original(self, following, NO_LINEAGE, *rest)

    patch.setattr(RangeCore, "on_received", received)

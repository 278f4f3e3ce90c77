"""Producers."""

from __future__ import annotations

from typing import Any

from spark_stream.broker.partition.appends import Appends
from spark_stream.client.writing.lanes import Lane
from tests.simulation.planted_bugs.planting import Patch, bug


@bug
def a_batch_that_is_sent_again_has_another_stamp(patch: Patch) -> None:
    original = Lane.next

    def following(self: Any, identity: Any) -> Any:
        if self.sent < len(self._batches) and identity is not None:
            self._batches[self.sent].stamp = None
        return original(self, identity)

    patch.setattr(Lane, "next", following)


@bug
def what_is_not_answered_is_sent_again_in_any_order(patch: Patch) -> None:
    original = Lane.on_lost

    def lost(self: Any) -> None:
        if self.sent:
            self._batches.rotate(1)
            for each in self._batches:
                each.stamp = None
        original(self)

    patch.setattr(Lane, "on_lost", lost)


@bug
def what_was_sent_in_vain_is_said_not_to_be_there(patch: Patch) -> None:
    original = Lane.remove_expired

    def expired(self: Any, now: float) -> Any:
        found = original(self, now)
        for each in found:
            each.unanswered = 0
        return found

    patch.setattr(Lane, "remove_expired", expired)


@bug
def each_try_counts_as_one_that_was_refused(patch: Patch) -> None:
    """A batch that a connection lost counts as refused by the leader."""
    original = Lane.on_lost

    def lost(self: Any) -> None:
        for each in self._batches:
            each.unanswered = 0
        original(self)

    patch.setattr(Lane, "on_lost", lost)


@bug
def a_refusal_settles_the_batch_behind(patch: Patch) -> None:
    original = Lane.pop

    def pop(self: Any) -> Any:
        if len(self._batches) > 1:
            self._batches[0], self._batches[1] = self._batches[1], self._batches[0]
        return original(self)

    patch.setattr(Lane, "pop", pop)


@bug
def two_batches_of_one_stamp_count_as_duplicates(patch: Patch) -> None:
    """Give two batches one stamp, and compare no contents. The first fault alone is harmless."""
    original = Lane._stamp

    def stamp(self: Any) -> Any:
        found = original(self)
        self._sequence = found.sequence + found.sequence % 2
        return found

    patch.setattr(Lane, "_stamp", stamp)
    patch.setattr(Appends, "_is_stored", lambda self, stored, prepared: True)


@bug
def an_answered_batch_stays_in_its_lane(patch: Patch) -> None:
    def pop(self: Any) -> Any:
        self.sent -= 1
        return self._batches[0]

    patch.setattr(Lane, "pop", pop)

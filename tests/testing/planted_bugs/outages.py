"""Promises, leases and unknown outcomes while the metadata store is away."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from spark_stream.broker.host.proposals import Proposals
from spark_stream.broker.replication import leader_core, promising
from spark_stream.broker.replication.fetchers import Fetchers
from spark_stream.broker.replication.promising import Promising
from spark_stream.cluster.stores.leases import Lease
from spark_stream.consistency.partition.progress import Progress
from spark_stream.consistency.replication import promises
from spark_stream.storage.disk.directory import PromiseFile
from tests.testing.planted_bugs.planting import Patch, bug_in_outages


@bug_in_outages
def a_promise_of_one_member_is_enough(patch: Patch) -> None:
    def leads_until(found: Collection[float]) -> float | None:
        return max(found, default=None)

    patch.setattr(promises, "leads_until", leads_until)


@bug_in_outages
def only_members_on_record_have_to_promise(patch: Patch) -> None:
    def leads_until(self: Progress) -> float | None:
        if self.settings.unclean:
            return None
        found = [each.promised_until for each in self._awaited if each.member in self.record.isr]
        return promises.leads_until(found)

    patch.setattr(Progress, "leads_until", leads_until)


@bug_in_outages
def promises_count_where_any_replica_may_be_elected(patch: Patch) -> None:
    def leads_until(self: Progress) -> float | None:
        return promises.leads_until([each.promised_until for each in self._awaited])

    patch.setattr(Progress, "leads_until", leads_until)


@bug_in_outages
def a_promise_is_not_kept(patch: Patch) -> None:
    patch.setattr(Fetchers, "may_lead_at", lambda self, key: 0.0)


@bug_in_outages
def a_promise_ends_with_the_stream(patch: Patch) -> None:
    patch.setattr(Fetchers, "_note_promise", lambda self, key, until: None)


@bug_in_outages
def a_promise_is_forgotten_at_a_restart(patch: Patch) -> None:
    patch.setattr(PromiseFile, "recorded", lambda self: None)


@bug_in_outages
def a_promise_is_not_noted(patch: Patch) -> None:
    patch.setattr(PromiseFile, "record", lambda self, lasts_s: None)


@bug_in_outages
def the_note_goes_before_the_promise_is_over(patch: Patch) -> None:
    def forget_ended(self: Promising) -> None:
        if self._noted_s:
            self._file.forget()
            self._noted_s = 0.0

    patch.setattr(Promising, "forget_ended", forget_ended)


@bug_in_outages
def a_promise_lasts_from_when_it_arrives(patch: Patch) -> None:
    original = leader_core.LeaderStreamCore.take

    def take(self: Any, message: Any, now: float) -> Any:
        if isinstance(message, leader_core.Promised):
            message = leader_core.Promised(now, message.lasts_s)
        return original(self, message, now)

    patch.setattr(leader_core.LeaderStreamCore, "take", take)


@bug_in_outages
def a_follower_waits_for_half_of_what_it_promised(patch: Patch) -> None:
    patch.setattr(promising, "free_at", lambda promised_at, lasts_s: promised_at + lasts_s / 2)


@bug_in_outages
def a_promise_counts_for_sessions_that_are_over(patch: Patch) -> None:
    original = leader_core.LeaderStreamCore._end_slot
    taken = leader_core.LeaderStreamCore.take
    ended: dict[int, list[Any]] = {}

    def end_slot(self: Any, number: int) -> Any:
        slot = self._queue.get(number)
        if slot is not None:
            ended.setdefault(id(self), []).append(slot.session)
        return original(self, number)

    def take(self: Any, message: Any, now: float) -> Any:
        calls = taken(self, message, now)
        if isinstance(message, leader_core.Promised):
            until = promises.holds_until(message.asked_at, message.lasts_s)
            for session in ended.get(id(self), ()):
                progress = session._partition.core.progress
                for each in progress._followers.values() if progress else ():
                    each.promised_until = max(each.promised_until, until)
        return calls

    patch.setattr(leader_core.LeaderStreamCore, "_end_slot", end_slot)
    patch.setattr(leader_core.LeaderStreamCore, "take", take)


@bug_in_outages
def a_renewal_that_failed_counts(patch: Patch) -> None:
    original: Callable[[Lease], bool] = Lease.renew

    def renew(self: Lease) -> bool:
        started = self._clock.monotonic()
        try:
            return original(self)
        except Exception:
            self._renewed_at = started
            raise

    patch.setattr(Lease, "renew", renew)


@bug_in_outages
def a_proposal_without_an_answer_is_forgotten(patch: Patch) -> None:
    def put_back(self: Proposals, proposed: Any) -> None:
        for each in proposed:
            progress = each.partition.core.progress
            if progress is not None:
                progress.proposed = None
                progress._find_maximal()

    patch.setattr(Proposals, "_put_back", put_back)

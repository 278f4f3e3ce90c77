"""Promises, leases and unknown outcomes during an outage of the metadata store."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from spark_stream.broker.host.proposals import Proposals
from spark_stream.broker.replication import promises as broker_promises
from spark_stream.broker.replication.fetchers import Fetchers
from spark_stream.cluster.stores.leases import Lease
from spark_stream.cluster.transactions import decode_join, joins_of
from spark_stream.consistency.partition.progress import Progress
from spark_stream.consistency.replication import promises
from spark_stream.consistency.transactions.transactions import Joined
from spark_stream.scripts.steps import ListRecords, Script
from spark_stream.scripts.transactions import records
from spark_stream.storage.disk.directory import PromiseFile
from tests.simulation.planted_bugs.planting import Patch, bug, bug_in_outages


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
def a_follower_waits_for_half_of_what_it_promised(patch: Patch) -> None:
    patch.setattr(
        broker_promises, "free_at", lambda promised_at, lasts_s: promised_at + lasts_s / 2
    )


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


@bug
def who_finishes_a_transaction_may_not_see_all_its_partitions(patch: Patch) -> None:
    def read_places(number: int, *, decided: bool = False) -> Script[tuple[Joined, ...]]:
        found = yield from ListRecords(joins_of(number), fresh=False)
        return tuple(decode_join(each).at for each in found)

    patch.setattr(records, "read_places", read_places)

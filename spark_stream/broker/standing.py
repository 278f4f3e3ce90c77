"""What the others are told of this broker: where it listens, and in which generation its logs are.

The generation is decided when the logs are open (``cluster.vouching``). If a force fails later, the
broker cannot vouch for that log any more: the system may have dropped what it had not written. So
it says so on record, then registers with a new generation. By that it is in sync nowhere until its
logs have been compared with those of their leaders; and where nobody else is in sync, it leads on
in a new epoch. A batch that turns out to be damaged has the same end, where another replica has it
(``consistency.damage``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from spark_stream.broker.damaged import DamagedReplicas
from spark_stream.broker.host import Host
from spark_stream.broker.members import Members
from spark_stream.cluster.adoption import adopt
from spark_stream.cluster.brokers import Brokers, RegisteredBroker
from spark_stream.cluster.store import MetadataStore
from spark_stream.cluster.vouching import Doubt, Found, Vouching
from spark_stream.consistency.ids import Generation
from spark_stream.consistency.partition_record import Member
from spark_stream.environment import Ids, Machine
from spark_stream.storage.directory import record_run, recorded_run
from spark_stream.storage.disk import HOST_DISK, Disk

logger = logging.getLogger(__name__)


class Standing:
    """One incarnation of a broker, as the records have it."""

    def __init__(
        self,
        store: MetadataStore,
        host: Host,
        members: Members,
        ids: Ids,
        machine: Machine,
        path: Path,
        disk: Disk = HOST_DISK,
    ) -> None:
        """``path``: the broker's directory."""
        self._store = store
        self._host = host
        self._ids = ids
        self._machine = machine
        self._path = path
        self._disk = disk
        self._vouching = Vouching(store, host.broker_id)
        self._run = ids.new_id()
        self._failed: set[str] = set()
        self._damaged = DamagedReplicas(host, members)
        self._registered: RegisteredBroker | None = None

    @property
    def me(self) -> Member:
        """This broker as a member of ISRs."""
        generation = self._host.generation
        assert generation is not None
        return Member(self._host.broker_id, generation)

    def vouch(self, *, holds_store: bool) -> None:
        """Decides the generation of the logs, which are open; adopts topics of earlier releases."""
        found = Found(
            recorded_run(self._path, self._disk),
            self._host.ends(),
            not self._host.doubts,
            self._machine.boot_id(),
        )
        generation, reason = self._vouching.begin(found, self._run, self._ids.new_id)
        record_run(self._path, self._run, self._disk)
        if reason is not None and reason is not Doubt.NEW:
            logger.error(
                "this broker cannot vouch for its logs (%s): it is in sync with no leader until its"
                " logs have been compared with theirs",
                "; ".join((reason.value, *self._host.doubts)),
            )
        self._host.generation = generation
        broker = self._host.broker_id
        if adopt(self._store, broker, generation, None, holds_store=holds_store):
            self._host.refresh()

    def register(self, broker: RegisteredBroker) -> None:
        """Puts the broker on record with its generation."""
        self._registered = replace(broker, generation=self.me.generation)
        Brokers(self._store).register(self._registered)

    def look(self, lead_again: Callable[[Member | None], None]) -> None:
        """Looks for logs whose forces have failed or whose batches are damaged; to be called often.

        ``lead_again``: begins new epochs where nobody else is in sync; it is given the member that
        this broker was, if the logs have all that they had then.
        """
        if self._registered is None:
            return
        failed = self._host.failed_logs()
        if not failed <= self._failed:
            self._vouching.force_failed(self._run)
            names = ", ".join(sorted(failed - self._failed))
            self._begin_generation(f"a force has failed ({names})")
            lead_again(None)
            self._failed = failed
        if self._damaged.need_to_leave(self.me):
            before = self.me
            names = ", ".join(self._damaged.left)
            self._begin_generation(f"batches are damaged ({names})")
            lead_again(before)

    def _begin_generation(self, reason: str) -> None:
        """By the registration this broker is in sync nowhere."""
        assert self._registered is not None
        generation = Generation(self._ids.new_id())
        logger.error(
            "%s: this broker goes on in a new generation of its logs; it is in sync with no leader"
            " until they have been compared with the leader's",
            reason,
        )
        self._vouching.begin_generation(self._run, generation)
        self._registered = replace(self._registered, generation=generation)
        Brokers(self._store).register(self._registered)
        self._host.change_generation(generation)

    def end(self) -> None:
        """All logs are forced and closed, in order."""
        self._vouching.end(self._run, self._host.ends())

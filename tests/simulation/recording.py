"""Writes the clients' answers as a history, for the checker in ``tests/histories``.

Only elections and losses are from the brokers: clients cannot see them, and the checker needs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from isolog.errors import InvalidTransaction, IsologError, OffsetEvicted, UnknownOutcome
from spark_stream.client.writing.lanes import Settlement, Unacknowledged
from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.consistency.isolation import CONSUMER_LEVELS, Isolation
from spark_stream.wire.stream_messages import Ack, BatchRefused
from spark_stream.wire.transaction_messages import CommitTransaction
from tests.histories.writing import HistoryWriter
from tests.simulation.broker import SimulatedBroker
from tests.simulation.clients.asking import Session
from tests.simulation.clients.readers import read_to_cut
from tests.simulation.fetching import SimulatedReader
from tests.simulation.history import Course, Fetched, Finish, Place, Seen, Sent
from tests.simulation.invariants.base import Invariant, View
from tests.simulation.network import NoAnswer
from tests.simulation.schedule import Body
from tests.simulation.world import World

_TRIES: Final = 4


class Recorder(Invariant):
    """Sees what invariants see, and writes it down instead of judging it."""

    def __init__(self, view: View, path: Path, seed: int) -> None:
        super().__init__(view)
        self._writer = HistoryWriter(path, f"simulator seed {seed}")
        self._epochs: dict[tuple[int, int], int] = {}
        """In which each acknowledged batch was appended, by its first number and its offset."""
        self._settled: set[int] = set()
        """Batches with a known outcome, by their first number."""
        self._asked: dict[int, tuple[CommitTransaction, int]] = {}
        """Commits without a known outcome, and the time of the first request."""

    def close(self) -> None:
        """Write the unfinished operations, also of a run that ends early."""
        for first, sent in self.history.sent.items():
            if first not in self._settled:
                self._write_append(sent, "unknown")
        for commit, called in list(self._asked.values()):
            asker = commit.transactional_id
            self.over(Finish(asker, True, commit.number, commit.branches, called, "unknown"))
        self._writer.close()

    def _at(self, place: Place) -> dict[str, object]:
        return {"topic": self._topic(place), "partition": place[1]}

    def _topic(self, place: Place) -> str:
        """The name with a part of the id: a recreated topic is another one."""
        return f"{self.history.courses[place].topic}.{place[0][:6]}"

    def acknowledged(self, sent: Sent, ack: Ack, broker: SimulatedBroker) -> None:
        line = self.history.lines.get((broker.broker_id, sent.place))
        if isinstance(ack, BatchRefused) or line is None:
            return
        for seen, numbers in line.between(ack.offset, ack.offset + ack.count):
            if list(numbers) == list(sent.values):
                self._epochs[sent.values[0], ack.offset] = int(seen.entry.leader_epoch)

    def settled(self, sent: Sent, settlement: Settlement) -> None:
        self._settled.add(sent.values[0])
        if isinstance(settlement, Unacknowledged):
            self._write_append(sent, _outcome_of(sent, settlement.error))
        else:
            self._write_append(sent, "ok", int(settlement.offset))

    def _write_append(self, sent: Sent, outcome: str, offset: int | None = None) -> None:
        epoch = None if offset is None else self._epochs.get((sent.values[0], offset))
        transaction, branch = (None, None) if sent.part is None else map(str, sent.part)
        self._writer.write(
            "append",
            client=sent.client,
            producer=None if sent.producer is None else str(sent.producer),
            **self._at(sent.place),
            call=sent.called,
            **{"return": None if outcome == "unknown" else self.history.moment()},
            outcome=outcome,
            values=list(sent.values),
            transaction=transaction,
            branch=branch,
            acks="replicated" if sent.committed else "leader",
            offset=offset,
            epoch=epoch,
        )

    def fetched(self, read: Fetched) -> None:
        bounds, snapshot, told = read.bounds, None, None
        if read.isolation is Isolation.READ_ATOMIC and read.epoch is not None:  # it came to the cut
            snapshot = f"at {read.called}"
        if bounds is not None:
            told = {
                "lso": int(bounds.last_stable_offset),
                "hw": int(bounds.high_watermark),
                "leo": int(bounds.log_end_offset),
            }
        self._writer.write(
            "read",
            client=read.client,
            **self._at(read.place),
            call=read.called,
            **{"return": self.history.moment()},
            isolation=read.isolation.value,
            **{"from": read.start},
            to=read.end,
            records=read.records,
            epoch=read.epoch,
            bounds=told,
            snapshot=snapshot,
        )

    def asked(self, commit: CommitTransaction) -> None:
        self._asked.setdefault(commit.number, (commit, self.history.moment()))

    def over(self, finish: Finish) -> None:
        if finish.commits:
            self._asked.pop(finish.transaction, None)
        self._writer.write(
            "commit" if finish.commits else "abort",
            client=finish.client,
            transaction=str(finish.transaction),
            branches=[str(each) for each in finish.taken] if finish.commits else None,
            call=finish.called,
            **{"return": None if finish.outcome == "unknown" else self.history.moment()},
            outcome=finish.outcome,
        )

    def cut(self, offsets: Mapping[Place, int]) -> None:
        now = self.history.moment()
        places = [[self._topic(place), place[1], int(at)] for place, at in offsets.items()]
        self._writer.write("cut", client="cutter", call=0, **{"return": now}, offsets=places)

    def placed(
        self, course: Course, before: PartitionRecord | None, after: PartitionRecord, by: str
    ) -> None:
        if before is not None and before.leader_epoch == after.leader_epoch:
            return
        self._writer.write(
            "elected",
            **self._at(course.place),
            call=self.history.moment(),
            epoch=int(after.leader_epoch),
        )

    def lost(self, course: Course, gone: Sequence[Seen]) -> None:
        self._writer.write("loss", **self._at(course.place), call=self.history.moment())


def _outcome_of(sent: Sent, error: IsologError) -> str:
    """A real producer aborts a transaction in which a write failed. Those of a run may not."""
    if isinstance(error, UnknownOutcome):
        return "unknown"
    if sent.part is not None and not isinstance(error, InvalidTransaction):
        return "unknown"
    return "failed"


def read_everything(world: World) -> Body:
    """Reads all records at each level, and one cut, at the end of a run."""
    session = Session(world, "final")
    for topic in world.topics():
        for at in range(topic.partitions):
            for isolation in CONSUMER_LEVELS:
                place: Place = (topic.id, at)
                reader = SimulatedReader(session, {place: (topic, 0, None)}, isolation)
                yield from _read_all(session, reader, place)
    try:
        yield from read_to_cut(session, world.topics(), {})
    except (IsologError, NoAnswer) as error:
        world.tell(f"final: {error}")


def _read_all(session: Session, reader: SimulatedReader, place: Place) -> Body:
    for _ in range(_TRIES):
        try:
            yield from reader.read(once=True)
            return
        except OffsetEvicted as error:
            reader.go_back(place, error.details["log_start_offset"])
        except (IsologError, NoAnswer) as error:
            session.world.tell(f"{session.name}: {error}")
            reader.go_on(place)

"""Offsets of a topic whose partitions may have several leaders: one look-up, one answer.

Any broker is asked first. It answers for the partitions that it leads and names the leaders of the
others, which are asked then. So a topic with one leader takes one call, and partitions that were
added a moment ago are found as well.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Final

from spark_stream.client.connecting.connection import Connection
from spark_stream.client.connecting.link import left
from spark_stream.client.connecting.router import Router
from spark_stream.client.values import PartitionOffsets
from spark_stream.errors import IsologError, LeaderUnavailable
from spark_stream.wire.messages import LeaderFacts, ListOffsets, Offsets

_PAUSE_FIRST_S: Final = 0.05
_PAUSE_MAX_S: Final = 0.5
_BROKERS_AT_ONCE: Final = 8
_BY_PARTITION: Final = (
    "offsets",
    "epochs",
    "log_start_offsets",
    "log_end_offsets",
    "lineages",
    "surviving",
)


def looked_up(connection: Connection, router: Router, asked: ListOffsets) -> PartitionOffsets:
    """What the leaders of the partitions say, asked for as long as the connection's timeout.

    Raises:
        UnknownTopic, UnknownPartition: there is none.
        LeaderUnavailable, BrokerUnavailable, RequestTimeout: not all leaders answer in time.
    """
    deadline = time.monotonic() + connection.timeout_s
    pause = _PAUSE_FIRST_S
    for rounds in count():
        first = connection.act("list-offsets", asked, Offsets, left(deadline))
        lookup = _LookUp(connection, router, asked, first, deadline, rounds)
        lookup.ask_leaders()
        if not lookup.missing:
            return lookup.found()
        if time.monotonic() + pause > deadline:
            raise lookup.failure()
        time.sleep(pause)
        pause = min(_PAUSE_MAX_S, 2 * pause)
    raise AssertionError("unreachable: the rounds do not end")


class _LookUp:
    """One round: the first answer, and those of the leaders that it names."""

    def __init__(
        self,
        connection: Connection,
        router: Router,
        asked: ListOffsets,
        first: Offsets,
        deadline: float,
        rounds: int,
    ) -> None:
        self._connection = connection
        self._router = router
        self._asked = asked
        self._deadline = deadline
        self._rounds = rounds  # there were before
        self._topic_id = first.topic_id
        self._answers: list[Offsets] = []
        self._failure: IsologError | None = None
        self.missing: set[int] = {each.partition for each in first.elsewhere}
        self._elsewhere = first.elsewhere
        self._take(first, first.offsets)

    def ask_leaders(self) -> None:
        """Asks the leaders of what is missing, all at once."""
        groups: dict[str, list[int]] = defaultdict(list)
        for each in self._elsewhere:
            if each.leader is not None and each.address and self._believed(each):
                groups[each.address].append(each.partition)
        if len(groups) < 2:
            for address, numbers in groups.items():
                self._ask(address, numbers)
            return
        with ThreadPoolExecutor(min(_BROKERS_AT_ONCE, len(groups))) as askers:
            list(askers.map(self._ask, groups, groups.values()))

    def _believed(self, leader: LeaderFacts) -> bool:
        return self._router.told(self._asked.topic, self._topic_id, leader)

    def _ask(self, address: str, numbers: list[int]) -> None:
        asked = self._asked.model_copy(update={"partitions": numbers})
        try:
            link = self._connection.at(address)
            turn = self._connection.turn(self._deadline, self._rounds)
            answer = link.act("list-offsets", asked, Offsets, turn)
        except IsologError as error:
            if not error.retriable:
                raise
            self._failure = error
            return
        if answer.topic_id != self._topic_id:
            name = self._asked.topic
            self._failure = LeaderUnavailable(f"topic {name!r} was made anew", topic=name)
            return
        self._take(answer, numbers)

    def _take(self, answer: Offsets, numbers: Iterable[int]) -> None:
        """Takes what the answer says, but for partitions whose leader it was once."""
        old = {
            number
            for number, epoch in answer.epochs.items()
            if not self._router.seen(self._asked.topic, self._topic_id, number, epoch)
        }
        self._answers.append(answer if not old else _without(answer, old))
        self.missing.difference_update(set(numbers) & answer.offsets.keys())
        self.missing.update(old)

    def failure(self) -> IsologError:
        """Why partitions are missing."""
        if self._failure is not None:
            return self._failure
        numbers = ", ".join(map(str, sorted(self.missing)))
        return LeaderUnavailable(
            f"topic {self._asked.topic!r} has no leader now for partition {numbers}",
            topic=self._asked.topic,
        )

    def found(self) -> PartitionOffsets:
        """All answers as one."""
        if len(self._answers) == 1:
            return _of(self._answers[0], self._asked)
        merged = [_of(each, self._asked) for each in self._answers]
        return PartitionOffsets(
            self._topic_id,
            {n: at for each in merged for n, at in each.offsets.items()},
            {n: at for each in merged for n, at in each.epochs.items()},
            {n: at for each in merged for n, at in each.log_start_offsets.items()},
            {n: at for each in merged for n, at in each.log_end_offsets.items()},
            {n: at for each in merged for n, at in each.lineages.items()},
            {n: at for each in merged for n, at in each.surviving.items()},
            tuple(sorted(n for each in merged for n in each.uncommitted)),
        )


def _without(answer: Offsets, numbers: set[int]) -> Offsets:
    """The answer without what it says of these partitions."""
    kept = {
        name: {n: at for n, at in getattr(answer, name).items() if n not in numbers}
        for name in _BY_PARTITION
    }
    uncommitted = [n for n in answer.uncommitted if n not in numbers]
    return answer.model_copy(update={**kept, "uncommitted": uncommitted})


def _of(answer: Offsets, asked: ListOffsets) -> PartitionOffsets:
    return PartitionOffsets(
        answer.topic_id,
        answer.offsets,
        answer.epochs,
        answer.log_start_offsets,
        answer.log_end_offsets,
        answer.lineages,
        {
            number: dict(zip(asked.lineages[number], held, strict=True))
            for number, held in answer.surviving.items()
        },
        tuple(answer.uncommitted),
    )

"""Which topics and partitions a query reads: named ones, those of a pattern, or given partitions.

Named topics have to exist. A pattern takes every topic whose whole name it matches, those that are
made later included. Given partitions are read and no others, however many a topic gets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from spark_stream.client.topics import matches
from spark_stream.datasource.values.offsets import Offsets, TopicOffsets
from spark_stream.errors import InvalidOption


class Selection(Struct, frozen=True):
    """``names``: the topics, unless a ``pattern`` (Python's ``re``) selects them.

    ``assigned``: topic → its partitions, unless all of them are read.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def option(self) -> str:
        """The option that makes this selection."""
        if self.pattern is not None:
            return "subscribePattern"
        return "assign" if self.assigned else "subscribe"

    def __str__(self) -> str:
        """Return a text that is the same for all selections that mean the same."""
        if self.pattern is not None:
            return f"{self.option} {self.pattern}"
        if self.assigned:
            return f"{self.option} {json.dumps(self.assigned, sort_keys=True)}"
        return f"{self.option} {','.join(sorted(self.names))}"

    def takes_topic(self, name: str) -> bool:
        """Return whether a topic of this name is read."""
        if self.pattern is None:
            return name in self.names
        return matches(self.pattern, name)

    def takes(self, name: str, partition: int) -> bool:
        """Return whether the partition is read, if there is one of this number."""
        return self.takes_topic(name) and (
            not self.assigned or partition in self.assigned.get(name, ())
        )

    def of(self, present: Iterable[str]) -> tuple[str, ...]:
        """Return the present topics to read, and those selected by name whether present or not."""
        if self.pattern is None:
            return self.names
        return tuple(name for name in present if self.takes_topic(name))

    def check_partitions(self, name: str, count: int) -> None:
        """Raise InvalidOption if partitions are assigned that the topic does not have."""
        for number in self.assigned.get(name, ()):
            if number >= count:
                raise InvalidOption(
                    f"assign: topic {name!r} has partitions 0 to {count - 1}, not {number}",
                    option="assign",
                )

    def why_not(self, name: str) -> str | None:
        """Return why a topic is not read, to follow its name; None if it is."""
        if self.takes_topic(name):
            return None
        if self.pattern is not None:
            return f"does not match subscribePattern {self.pattern!r}"
        return "is not assigned" if self.assigned else "is not subscribed to"

    def kept(self, offsets: Offsets) -> dict[str, TopicOffsets]:
        """Keep the offsets of what is read."""
        found = {}
        for name, topic in offsets.items():
            if self.takes_topic(name):
                kept = {n: at for n, at in topic.offsets.items() if self.takes(name, n)}
                found[name] = topic if kept == topic.offsets else topic.moved(kept)
        return found

"""Topics, schemas and offsets as a query needs them, and what of its range is lost.

Everything here runs on the driver, and asks the log through this process's session.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from spark_stream.client.columns import View, shown_schema
from spark_stream.client.positions import named_resolved
from spark_stream.client.values import PartitionOffsets, TopicDescription
from spark_stream.consistency.isolation import Isolation
from spark_stream.datasource.nulls import check_nullability
from spark_stream.datasource.offsets import (
    Offsets,
    Range,
    TopicOffsets,
    clusters,
    from_json,
    known_offsets,
    ranges,
    to_json,
)
from spark_stream.datasource.options import Named, SourceOptions
from spark_stream.datasource.session import Session, located, session
from spark_stream.errors import (
    DataLoss,
    InvalidOption,
    SchemaMismatch,
    UnknownTopic,
    WrongCluster,
)
from spark_stream.wire.messages import LATEST, CutTopic
from spark_stream.wire.schemas import empty_batch, fitted, is_default

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """The log as it is now: topic → its offsets under the isolation level, and its bounds."""

    latest: Mapping[str, PartitionOffsets]
    missing: frozenset[str]

    def offsets(self) -> dict[str, TopicOffsets]:
        """The bounds as streaming offsets, wherever a query is."""
        return {
            name: TopicOffsets(topic.topic_id, topic.offsets, topic.epochs)
            for name, topic in self.latest.items()
        }


class Planner:
    """The planning side of one reader. Holds no connection, so that it can be sent to a worker."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    @property
    def _session(self) -> Session:
        return session(self.options.place)

    @classmethod
    def of(cls, options: SourceOptions) -> Planner:
        """For the log that is there now; its options are what the tasks of the query get."""
        return cls(replace(options, place=located(options.place)))

    def logged(self, offsets: Offsets) -> dict[str, Any]:
        """The offsets as Spark logs them, with the log that they are of."""
        return to_json(offsets, self._session.cluster_id)

    def read_back(self, value: Mapping[str, Any]) -> dict[str, TopicOffsets]:
        """The offsets that Spark logged.

        Raises:
            WrongCluster: they are of another log than the one that the query reads now.
        """
        here = self._session.cluster_id
        for name, cluster_id in clusters(value).items():
            if cluster_id != here:
                raise WrongCluster(
                    f"the checkpoint is at topic {name!r} of the log {cluster_id}, and"
                    f" {self.options.place.name} is the log {here}",
                    hint="Give the place of the log that the checkpoint is of, or begin a new"
                    " checkpoint.",
                    topic=name,
                    expected=cluster_id,
                    found=here,
                )
        return from_json(value)

    def described(self) -> dict[str, TopicDescription]:
        """The topics that were subscribed to, or UnknownTopic."""
        return {name: self._session.topics.describe(name) for name in self.options.topics}

    def shown(self) -> pa.Schema:
        """The columns that the query shows where it does not choose them.

        Raises:
            SchemaMismatch: the topics differ; the message names a column.
        """
        schemas = {name: self._shown(each.schema) for name, each in self.described().items()}
        (first, schema), *others = schemas.items()
        for name, other in others:
            if not other.equals(schema):
                raise SchemaMismatch(
                    f"topics {first!r} and {name!r} have different columns:"
                    f" {_difference(schema, other)}",
                    hint="Choose the columns they share with .schema(...), or read each by itself.",
                )
        return schema

    def _shown(self, stored: pa.Schema) -> pa.Schema:
        options = self.options
        if is_default(stored) and options.include_metadata:
            raise InvalidOption(
                "includeMetadata is for typed topics; this one shows topic, partition, offset and"
                " timestamp anyway",
                option="includeMetadata",
            )
        if not is_default(stored) and options.include_headers:
            raise InvalidOption(
                "includeHeaders is for default-schema topics; a typed topic has no headers",
                option="includeHeaders",
            )
        return shown_schema(
            stored, metadata=options.include_metadata, headers=options.include_headers
        )

    def check_projection(self, wanted: pa.Schema) -> None:
        """SchemaMismatch if a topic lacks a column of the query, or has it in another type."""
        for name, topic in self.described().items():
            view = View.of(name, topic.schema, wanted.names)
            fitted(empty_batch(view.schema), wanted)
            check_nullability(name, view.schema, wanted)

    @property
    def atomic(self) -> bool:
        """Whether bounds have to be cuts: offsets that no transaction lies on both sides of."""
        return self.options.isolation is Isolation.READ_ATOMIC

    def latest(self) -> Found:
        """The present bounds of all topics; those that are gone are in ``missing``."""
        latest, missing = {}, set()
        for name in self.options.topics:
            try:
                latest[name] = self._session.topics.offsets(name, isolation=self.options.isolation)
            except UnknownTopic:
                missing.add(name)
        if self.atomic and latest:
            # A topic's own bounds are cuts of that topic; a transaction may span several.
            cut = self._cut({name: (at.topic_id, {}, {}) for name, at in latest.items()})
            latest = {name: replace(at, offsets=cut[name]) for name, at in latest.items()}
        return Found(latest, frozenset(missing))

    def cut_below(self, ends: Offsets) -> dict[str, TopicOffsets]:
        """The greatest cut that is nowhere above the ends."""
        cut = self._cut({name: (topic.id, {}, topic.offsets) for name, topic in ends.items()})
        return {name: topic.moved(cut[name]) for name, topic in ends.items()}

    def cut_between(self, begin: Offsets, limited: Offsets, ends: Offsets) -> Offsets:
        """How far a reader at ``begin`` goes that wants to go no farther than ``limited``.

        To the greatest cut within. Where a transaction is larger than that, beyond it, but never
        above ``ends``, which is a cut: records below it that are not in ``limited`` come later.
        """
        moving = {each.topic for each in ranges(begin, ends)}
        cut = self._cut(
            {
                name: (topic.id, known_offsets(begin, name, topic.id), topic.offsets)
                for name, topic in limited.items()
                if name in moving
            }
        )
        found = {
            name: topic.moved(
                {number: min(end, cut[name][number]) for number, end in topic.offsets.items()}
            )
            if name in moving
            else topic
            for name, topic in ends.items()
        }
        return found if any(ranges(begin, found)) else ends

    def _cut(
        self, topics: Mapping[str, tuple[str, Mapping[int, int], Mapping[int, int]]]
    ) -> Mapping[str, Mapping[int, int]]:
        """A cut; for each topic its id, and the offsets that it is to lie between."""
        return self._session.transactions.cut(
            CutTopic.of(topic=name, topic_id=topic_id, lower=dict(lower), upper=dict(upper))
            for name, (topic_id, lower, upper) in topics.items()
        )

    def resolved(self, place: Named, unnamed: int) -> dict[str, TopicOffsets]:
        """Starting or ending offsets, resolved now; partitions left out take ``unnamed``.

        Raises:
            UnknownTopic: there is no such topic.
            InvalidOption: a partition that the topic does not have.
        """
        found = {}
        bounds = self.latest().latest if self.atomic else {}
        for name in self.options.topics:
            now = bounds.get(name) or self._session.topics.offsets(
                name, isolation=self.options.isolation
            )
            default = place if isinstance(place, int) else unnamed
            asked = dict.fromkeys(now.offsets, default)
            named = {} if isinstance(place, int) else place.get(name, {})
            for number in named:
                if number not in asked:
                    raise InvalidOption(
                        f"topic {name!r} has partitions 0 to {len(asked) - 1}, not {number}"
                    )
            wanted = asked | dict(named)
            if name in bounds:  # "latest" is where a cut through all topics stands
                wanted = {
                    number: now.offsets[number] if offset == LATEST else offset
                    for number, offset in wanted.items()
                }
            offsets = named_resolved(self._session.topics, name, wanted, self.options.isolation)
            found[name] = TopicOffsets(now.topic_id, offsets, now.epochs)
        return found

    def lost(self, message: str, **details: str | int) -> None:
        """Records of the query's range are gone: fails or warns, as ``failOnDataLoss`` says."""
        if self.options.fail_on_data_loss:
            raise DataLoss(message, hint=None, **details)
        logger.warning("%s; going on with what is left (failOnDataLoss is false)", message)

    def ends(self, start: Offsets, now: Found) -> dict[str, TopicOffsets]:
        """How far the query can read now, given where it is; reports what is lost on the way."""
        for name in sorted(now.missing):
            self.lost(f"topic {name!r} was deleted", topic=name)
        ends = {name: start[name] for name in now.missing if name in start}
        for name, latest in now.latest.items():
            before = start.get(name)
            if before is not None and before.id != latest.topic_id:
                self.lost(
                    f"topic {name!r} was deleted and made anew: its id was {before.id}, now it is"
                    f" {latest.topic_id}",
                    topic=name,
                )
                before = None
            offsets = {number: self._end(name, number, latest, before) for number in latest.offsets}
            ends[name] = TopicOffsets(latest.topic_id, offsets, latest.epochs)
        return ends

    def _end(
        self, name: str, number: int, latest: PartitionOffsets, before: TopicOffsets | None
    ) -> int:
        bound = latest.offsets[number]
        at = None if before is None else before.offsets.get(number)
        if at is None or at <= bound:
            return bound
        log_end = latest.log_end_offsets[number]
        if at <= log_end:
            return at  # the records are there, only not visible under this isolation level (yet)
        self.lost(
            f"{name}/{number}: the query has read up to offset {at}, but the log ends at {log_end}:"
            f" offsets {log_end} to {at - 1} were cut off",
            topic=name,
            partition=number,
        )
        return bound

    def readable(self, asked: Iterable[Range], now: Found) -> list[Range]:
        """The ranges less what retention removed or what was deleted; reports that."""
        kept = []
        for each in asked:
            latest = now.latest.get(each.topic)
            where = f"{each.topic}/{each.partition}"
            if latest is None or latest.topic_id != each.topic_id:
                self.lost(
                    f"{where}: offsets {each.start} to {each.end - 1} went with their topic, which"
                    " was deleted",
                    topic=each.topic,
                    partition=each.partition,
                )
                continue
            first = latest.log_start_offsets.get(each.partition, 0)
            start = each.start
            if start < first:
                self.lost(
                    f"{where}: offsets {start} to {min(first, each.end) - 1} were removed by"
                    f" retention; the first left is {first}",
                    topic=each.topic,
                    partition=each.partition,
                )
                start = first
            if start < each.end:
                kept.append(Range(each.topic, each.topic_id, each.partition, start, each.end))
        return kept


def _difference(one: pa.Schema, other: pa.Schema) -> str:
    for name in dict.fromkeys([*one.names, *other.names]):
        a = str(one.field(name).type) if name in one.names else "missing"
        b = str(other.field(name).type) if name in other.names else "missing"
        if a != b:
            return f"column {name!r} is {a} and {b}"
    return "the order of their columns"

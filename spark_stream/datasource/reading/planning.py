"""The plan of a query: its topics, schemas, bounds and ranges of offsets.

All of this runs on the driver, and uses this process's session with the log. ``tasks`` of
``values.limits`` cuts the ranges into tasks, and ``reader`` fetches the records of a task.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql.types import StructType

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.lake_tables import ONLY, check_one_cut
from spark_stream.client.reading.columns import View, shown_schema
from spark_stream.client.topics import TopicsClient
from spark_stream.consistency.isolation import DROPS_ABORTED, Isolation
from spark_stream.consistency.replication.epochs import Lineage
from spark_stream.datasource.options import SourceOptions
from spark_stream.datasource.options.query import Selection
from spark_stream.datasource.reading.losses import Losses
from spark_stream.datasource.reading.older_records import OlderRecords
from spark_stream.datasource.spark.session import Grant, Session, locate, session
from spark_stream.datasource.spark.types import check_nullability, text_rule, to_arrow, to_spark
from spark_stream.datasource.values.limits import Place
from spark_stream.datasource.values.offsets import (
    LogState,
    Offsets,
    Range,
    TopicOffsets,
    clusters,
    from_checkpoint,
    known_offsets,
    ranges,
    to_json,
)
from spark_stream.errors import (
    InvalidFilter,
    InvalidOption,
    SchemaMismatch,
    UnknownTopic,
    WrongCluster,
)
from spark_stream.loggers import logger_of
from spark_stream.schema.evolution import widens
from spark_stream.schema.schemas import empty_batch, fitted, is_default, of_topic
from spark_stream.schema.types import distinct_names, without_metadata
from spark_stream.sql.filters import parsed, row_filter
from spark_stream.sql.tree import compared_columns
from spark_stream.structs import INT64_MAX
from spark_stream.wire.topic_messages import (
    AskedTopic,
    AtomicCut,
    Cut,
    CutTopic,
    PartitionOffsets,
    TopicDescription,
)

logger = logger_of(__name__)


def _grants(options: SourceOptions) -> list[Grant]:
    """Return the permissions that a query's tasks and planner need."""
    names = options.selection.names or tuple(options.selection.assigned)
    topics = ["*"] if options.selection.pattern is not None else list(names)
    grants = [("read", f"topic:{name}") for name in topics]
    if options.consumer is not None:
        grants.append(("read", f"consumer:{options.consumer}"))
    return grants


class Planner:
    """The planning side of one reader. Holds no connection, so that it can be sent to a worker."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.losses = Losses(options.fail_on_data_loss)
        self._has_warned = False  # about uncommitted records: once per query
        self._dropped: set[str] = set()  # topics that were logged as no longer selected
        self._matching: tuple[str, ...] = ()  # the topics of a pattern that were seen last
        self._older = OlderRecords(options)

    @property
    def _session(self) -> Session:
        return session(self.options.place)

    @property
    def connection(self) -> ClusterConnection:
        """This process's connection to the log."""
        return self._session.connection

    @property
    def topics(self) -> TopicsClient:
        """The client for topics of this process."""
        return self._session.topics

    @classmethod
    def of(
        cls, options: SourceOptions, *, has_tasks: bool = True, lasting: bool = False
    ) -> Planner:
        """Return a planner for the present log. The query's tasks get its options.

        ``lasting``: for a streaming query, whose end is unknown.
        """
        grants = _grants(options) if has_tasks else ()
        return cls(replace(options, place=locate(options.place, grants, lasting=lasting)))

    def logged(self, offsets: Offsets) -> dict[str, Any]:
        """Return the offsets as Spark logs them, with the id of their log."""
        return to_json(offsets, self._session.cluster_id)

    def read_back(self, value: Mapping[str, Any]) -> dict[str, TopicOffsets]:
        """Parse the offsets that Spark logged.

        Raises:
            InvalidRequest: They are no offsets of this source, or do not name their log.
            WrongCluster: They are of another log than the one that the query reads now.
        """
        found = from_checkpoint(value)
        self.check_log(value, "the checkpoint")
        return found

    def check_log(self, value: Mapping[str, Any], source: str) -> None:
        """Raise WrongCluster if these logged offsets are of another log."""
        here = self._session.cluster_id
        for name, cluster_id in clusters(value).items():
            if cluster_id != here:
                raise WrongCluster(
                    f"{source}: topic {name!r} belongs to the log {cluster_id}, but"
                    f" {self.options.place.name} is the log {here}",
                    hint="Give the place of that log, or begin a new query here: with a new"
                    " checkpoint, and other startingOffsets.",
                    topic=name,
                    expected=cluster_id,
                    found=here,
                )

    @property
    def selection(self) -> Selection:
        """The topics and partitions to read."""
        return self.options.selection

    def describe(self) -> dict[str, TopicDescription]:
        """Describe the selected topics, without those that were deleted.

        Raises:
            UnknownTopic: One does not exist, and ``failOnDataLoss`` is set.
            InvalidOption: Partitions are assigned that a topic does not have.
        """
        found = {}
        by_name = self.selection.pattern is None
        for name in self.selection.of(() if by_name else self.topics.names(readable=True)):
            try:
                found[name] = self.topics.describe(name)
                self.selection.check_partitions(name, len(found[name].partitions))
            except UnknownTopic:
                # A topic of a pattern was deleted a moment ago. Without failOnDataLoss, the loss of
                # a named one is logged later, with the offsets that the query has read.
                if by_name and self.options.fail_on_data_loss:
                    raise
        return found

    def shown(self) -> pa.Schema:
        """Return the columns of a query that does not choose them.

        Raises:
            SchemaMismatch: The topics differ. The message names a column.
            InvalidFilter: The filter is not valid, or does not fit a topic's columns.
            UnknownTopic: None of the topics exists.
        """
        topics = self.describe()
        if not topics:
            raise self.no_topic("the columns are unknown")
        for name, topic in topics.items():
            if self.options.filter is not None:
                row_filter(self.options.filter, name, topic.schema)
        schemas = {name: self._shown(topic.schema) for name, topic in topics.items()}
        (first, schema), *others = schemas.items()
        for name, other in others:
            if not other.equals(schema):
                raise SchemaMismatch(
                    f"topics {first!r} and {name!r} have different columns:"
                    f" {_difference(schema, other)}",
                    hint="Choose common columns with .schema(...), or read each topic by itself.",
                )
        return pa.schema(
            field
            if all(
                field.equals(other.field(place), check_metadata=True) for other in schemas.values()
            )
            else without_metadata(field)  # their declared types may differ
            for place, field in enumerate(schema)
        )

    def no_topic(self, consequence: str) -> UnknownTopic:
        """Return the error of a query that has no topic, but needs one."""
        if self.selection.pattern is not None:
            return UnknownTopic(
                f"no topic matches subscribePattern {self.selection.pattern!r}: {consequence}",
                hint="A stream may wait for such a topic if it names its columns with .schema(...)."
                " The pattern has to match the whole name.",
            )
        return UnknownTopic(
            f"there is no topic {' or '.join(map(repr, self.selection.names))}: {consequence}",
            hint="Create the topic again, or name the columns with .schema(...).",
        )

    def _shown(self, stored: pa.Schema) -> pa.Schema:
        options = self.options
        if is_default(stored) and options.include_metadata:
            raise InvalidOption(
                "includeMetadata is for typed topics: this topic has the columns topic, partition,"
                " offset and timestamp already",
                option="includeMetadata",
            )
        if not is_default(stored) and options.include_headers:
            raise InvalidOption(
                "includeHeaders is for default-schema topics: a typed topic has no headers",
                option="includeHeaders",
            )
        return shown_schema(
            stored, metadata=options.include_metadata, headers=options.include_headers
        )

    def check_projection(self, columns: StructType) -> None:
        """Check that the query's columns and filter fit each topic.

        Raises:
            SchemaMismatch: The topic lacks a column, or has it in another type.
            InvalidFilter: The filter does not fit its columns, or compares texts that Spark would
                not compare by their bytes.
        """
        wanted = to_arrow(columns)
        self._check_filter(columns)
        for name, topic in self.describe().items():
            view = planned_view(topic, wanted, self.options.filter)
            with of_topic(name):
                fitted(empty_batch(view.schema), wanted)
            check_nullability(name, View.of(name, topic.schema, wanted.names).schema, wanted)

    def _check_filter(self, columns: StructType) -> None:
        tree = None if self.options.filter is None else parsed(self.options.filter)
        for each in compared_columns(tree):
            rule = self._text_rule(columns, each.path)
            if rule is not None:
                raise InvalidFilter(
                    f"filter: column {each.shown!r} is {rule} in this query, and a leader compares"
                    " texts by their bytes",
                    option="filter",
                    column=each.shown,
                    hint="Use .where(...), which Spark applies by the rules of the type.",
                )

    def _text_rule(self, columns: StructType, path: Sequence[str]) -> str | None:
        """Return the type by whose rules Spark compares a column's texts, or None.

        For a column that the query does not select, it is the type that the topics declare.
        """
        name = path[0].lower()
        if name in map(str.lower, columns.names):
            return text_rule(columns, path)
        for topic in self.describe().values():
            declared = pa.schema([each for each in topic.schema if each.name.lower() == name])
            rule = text_rule(to_spark(declared), path)
            if rule is not None:
                return rule
        return None

    @property
    def atomic(self) -> bool:
        """Whether bounds have to be cuts, which divide no transaction."""
        return self.options.isolation is Isolation.READ_ATOMIC

    def latest(
        self, *seen: Offsets, reading: Iterable[Range] = (), watched: Offsets | None = None
    ) -> LogState:
        """Look up the present bounds of the selected topics. Deleted topics are in ``missing``.

        Topics of ``reading`` are looked up whether they are selected or not. The answer has the
        offsets up to which the lineages of the offsets in ``seen`` survive. If the level returns
        uncommitted records, a warning is logged the first time that ``reading`` has some. With
        ``watched``, the answer has whether there are any from these offsets on, without a warning.
        """
        asked = _by_topic(reading)
        shown: dict[str, dict[int, tuple[int, int]]] = {}
        if self._shows_uncommitted and not self._has_warned:
            shown = asked if watched is None else _from_here_on(watched)
        found = self._look(seen, shown, self._names(seen, asked))
        if watched is None:
            self._warn_of_uncommitted(found)
        return self._selected(found, asked)

    def _names(self, seen: Iterable[Offsets], asked: Iterable[str]) -> list[str]:
        """Return the topics to look up. The look-up adds those that a pattern matches."""
        names = self._matching if self.selection.pattern is not None else self.selection.names
        read = (name for each in seen for name in each if self.selection.takes_topic(name))
        return list(dict.fromkeys([*names, *read, *asked]))

    def _selected(self, found: LogState, asked: Mapping[str, Mapping[int, object]]) -> LogState:
        """Keep the answers about selected partitions, and about those requested by name."""
        if not self.selection.assigned:
            return found
        latest = {
            name: at.only(
                {
                    n
                    for n in at.partitions
                    if self.selection.takes(name, n) or n in asked.get(name, ())
                }
            )
            for name, at in found.latest.items()
        }
        return replace(found, latest=latest)

    def check_checkpoint(self, at: Offsets) -> None:
        """Raise InvalidOption if a checkpoint's offsets are of other partitions only.

        It is the checkpoint of another query then, and this query would begin as if it were new.
        Without ``failOnDataLoss`` there is no error, and :meth:`still_selected` logs it.
        """
        kept = self.selection.kept(at).values()
        there = [name for name, topic in at.items() if topic.offsets]
        if there and self.options.fail_on_data_loss and not any(each.offsets for each in kept):
            option = self.selection.option
            raise InvalidOption(
                f"{option}: the checkpoint is of {', '.join(map(repr, there))}, and"
                f" {self.selection} selects none of its partitions",
                option=option,
                hint="Give this query another checkpointLocation, or also select the topics of the"
                " checkpoint. With failOnDataLoss=false it starts as a new query.",
            )

    def still_selected(self, at: Offsets) -> dict[str, TopicOffsets]:
        """Return the offsets of the selected partitions.

        Log once the partitions of a checkpoint that are no longer selected.

        Raises: as :meth:`check_checkpoint`.
        """
        self.check_checkpoint(at)
        kept = self.selection.kept(at)
        for name, topic in at.items():
            left_out = sorted(topic.offsets.keys() - (kept[name].offsets if name in kept else {}))
            whole = len(left_out) == len(topic.offsets)
            if left_out and name not in self._dropped:
                self._dropped.add(name)
                what = f"topic {name!r}" if whole else f"{name}/{', '.join(map(str, left_out))}"
                logger.warning(
                    "%s is in the checkpoint, and %s no longer selects it: its further records are"
                    " not read. If it is selected again later, it is read from its earliest record",
                    what,
                    self.selection.option,
                )
        return kept

    def with_new_topics(self, begin: Offsets, now: LogState) -> dict[str, TopicOffsets]:
        """Return the offsets, together with the earliest ones of topics that they lack."""
        new = {
            name: TopicOffsets(topic.topic_id, topic.log_start_offsets, {})
            for name, topic in now.latest.items()
            if name not in begin
        }
        return {**begin, **new}

    @property
    def _shows_uncommitted(self) -> bool:
        return self.options.isolation is Isolation.READ_UNCOMMITTED

    def _warn_of_uncommitted(self, found: LogState) -> None:
        names = [name for name, at in found.latest.items() if at.uncommitted]
        if names:
            self._has_warned = True
            logger.warning(
                "%s: the query reads records of aborted or open transactions, because its isolation"
                " is read_uncommitted; to read committed records only, set the option"
                " isolation=read_committed",
                ", ".join(names),
            )

    def _look(
        self,
        seen: Iterable[Offsets],
        shown: Mapping[str, dict[int, tuple[int, int]]],
        names: Sequence[str],
    ) -> LogState:
        by_pattern = self.selection.pattern is not None
        while True:
            looked = self.topics.look_up(
                [
                    AskedTopic.of(
                        topic=name,
                        isolation=self.options.isolation,
                        lineages={n: list(each) for n, each in _lineages(name, seen).items()},
                        ranges=shown.get(name, {}),
                        facts=self.options.isolation in DROPS_ABORTED,
                    )
                    for name in names
                ],
                names=by_pattern,
            )
            if by_pattern:
                self._matching = self.selection.of(looked.names or ())
                if not set(self._matching) <= set(names):  # there are new ones
                    names = list(dict.fromkeys([*names, *self._matching]))
                    continue
            latest = self._older.extended(looked.topics, seen)
            gone = looked.unknown.keys() & {each for at in seen for each in at}
            found = LogState(latest, frozenset(gone if by_pattern else looked.unknown))
            if self.options.lake == ONLY:
                check_one_cut(latest, self.options.isolation)
                return found
            if not self.atomic or not latest:
                return found
            # A transaction may span several topics. The cut is not above the bounds that were
            # looked up, because their lineages end there.
            try:
                cut = self._cut(
                    {name: (at.topic_id, {}, at.offsets) for name, at in latest.items()},
                    names=by_pattern or bool(looked.unknown),
                )
            except UnknownTopic:  # one was deleted in between: look again
                continue
            created = {each for each in cut.names or () if self.selection.takes_topic(each)}
            created -= latest.keys()
            names = list(dict.fromkeys([*names, *created]))
            ends = cut.offsets
            is_same = all(ends[name].keys() == at.partitions.keys() for name, at in latest.items())
            if is_same and not created:
                moved = {name: at.moved(ends[name]) for name, at in latest.items()}
                return replace(found, latest=moved)
            # In between there were new topics or partitions, perhaps with records of a transaction
            # below the cut: look again.

    def sizes(self, asked: list[Range]) -> dict[Place, tuple[int, int]]:
        """Return the stored bytes of each range, and those of its first record.

        Ranges of a topic that was deleted in between are left out.
        """
        in_tables = self._older.sizes(asked)
        found = self._measure(
            AskedTopic.of(topic=name, sizes=places)
            for name, places in _by_topic(self._older.in_log(asked)).items()
        )
        sizes = {
            (name, n): each.size
            for name, at in found.items()
            for n, each in at.partitions.items()
            if each.size is not None
        }
        for place, (size, first) in in_tables.items():
            sizes[place] = size + sizes.get(place, (0, 0))[0], first
        return sizes

    def reached(self, asked: list[Range], budgets: Mapping[Place, int]) -> dict[Place, int]:
        """Return the end of the whole records of each range within its budget of bytes."""
        left, in_tables = self._older.reached(asked, budgets)
        whole = [each for each in asked if (each.topic, each.partition) not in in_tables]
        found = self._measure(
            AskedTopic.of(
                topic=name,
                budgets={n: (*ends, left.get((name, n), 0)) for n, ends in places.items()},
            )
            for name, places in _by_topic(self._older.in_log(whole)).items()
        )
        reached = {
            (name, n): each.reached
            for name, at in found.items()
            for n, each in at.partitions.items()
            if each.reached is not None
        }
        return reached | in_tables

    def first_offset(self, name: str, number: int, now: PartitionOffsets) -> int:
        """Return the first offset of a partition. Raise LakeIncomplete for a missing table."""
        found = now.partitions[number].log_start_offset
        if found:
            self._older.check_first(name)
        return found

    def offsets_at(self, name: str, time_us: int, numbers: list[int]) -> dict[int, int]:
        """Return the first offset in each partition whose record is not older than a time."""
        return self._older.offsets_at(name, time_us, numbers)

    def _measure(self, asked: Iterable[AskedTopic]) -> Mapping[str, PartitionOffsets]:
        return self.topics.look_up(list(asked)).topics

    def cut_below(self, begin: Offsets, ends: Offsets, now: LogState) -> dict[str, TopicOffsets]:
        """Return the greatest cut for a reader at ``begin`` that is nowhere above the ends.

        A partition of ``now`` that the ends lack is not read, so the cut is at its start.

        Raises:
            UnknownTopic: A topic of ``now`` was deleted.
        """
        if self._older.is_below_log(ends):
            return dict(self._older.cut_below(ends))
        lower, upper = {}, {}
        for name, at in now.latest.items():
            lower[name] = known_offsets(begin, name, at.topic_id)
            known = known_offsets(ends, name, at.topic_id)
            upper[name] = {number: known.get(number, 0) for number in at.partitions}
        cut = self._cut(
            {name: (at.topic_id, lower[name], upper[name]) for name, at in now.latest.items()}
        ).offsets
        is_above = any(
            cut[name][number] > max(limit, lower[name].get(number, 0))
            for name, limits in upper.items()
            for number, limit in limits.items()
        )
        found = lower if is_above else cut  # a transaction larger than the range
        return {
            name: topic.moved({number: found[name].get(number, 0) for number in topic.offsets})
            for name, topic in ends.items()
        }

    def cut_between(self, begin: Offsets, limited: Offsets, ends: Offsets) -> Offsets:
        """Return the end of a reader at ``begin`` whose limit is ``limited``.

        It is the greatest cut within the limit. If a transaction is larger than that, the end is
        above ``limited``, but never above ``ends``, which is a cut. The next micro-batch has the
        rest.
        """
        if self.options.lake == ONLY:
            return ends  # a table has no cuts below its last one
        if self._older.is_below_log(limited):
            return self._older.cut_between(begin, limited, ends)
        moving = {each.topic for each in ranges(begin, ends)}
        asked = {
            name: (topic.id, known_offsets(begin, name, topic.id), topic.offsets)
            for name, topic in limited.items()
            if name in moving
        }
        try:
            cut = self._cut(asked).offsets
        except UnknownTopic:  # deleted since: the tasks report the loss
            return ends
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
        self,
        topics: Mapping[str, tuple[str, Mapping[int, int], Mapping[int, int]]],
        *,
        names: bool = False,
    ) -> Cut:
        """Look up a cut.

        ``topics``: each topic's id, and the offsets between which the cut has to lie. ``names``:
        look up the names of all topics too.
        """
        asked = [
            CutTopic.of(topic=name, topic_id=topic_id, lower=dict(lower), upper=dict(upper))
            for name, (topic_id, lower, upper) in topics.items()
        ]
        return self.connection.call(AtomicCut(topics=asked, names=names))


def _lineages(name: str, seen: Iterable[Offsets]) -> dict[int, set[Lineage]]:
    """Return the lineages of the topic's offsets, by partition."""
    found: dict[int, set[Lineage]] = {}
    for each in seen:
        for number, lineage in each[name].lineages.items() if name in each else ():
            if lineage:
                found.setdefault(number, set()).add(lineage)
    return found


def _from_here_on(begin: Offsets) -> dict[str, dict[int, tuple[int, int]]]:
    """Return topic → partition → its offset, and the greatest possible offset."""
    return {
        name: {number: (offset, INT64_MAX) for number, offset in topic.offsets.items()}
        for name, topic in begin.items()
    }


def _by_topic(reading: Iterable[Range]) -> dict[str, dict[int, tuple[int, int]]]:
    """Return topic → partition → start and end."""
    found: dict[str, dict[int, tuple[int, int]]] = {}
    for each in reading:
        found.setdefault(each.topic, {})[each.partition] = (each.start, each.end)
    return found


def _difference(one: pa.Schema, other: pa.Schema) -> str:
    for name in dict.fromkeys([*one.names, *other.names]):
        if name not in one.names or name not in other.names:
            return f"only one of them has column {name!r}"
        kinds = one.field(name).type, other.field(name).type
        if kinds[0] != kinds[1]:
            return f"column {name!r} is {' and '.join(distinct_names(*kinds))}"
    return "the order of their columns"


def planned_view(topic: TopicDescription, wanted: pa.Schema, filter: str | None) -> View:
    """Return the columns of a query, in its types.

    The topic's schema may have been altered after the query was planned. Or it was altered before,
    and this process still has the older schema in its cache. Columns that were widened are narrowed
    again, as long as all values fit.

    Raises:
        SchemaMismatch: The topic lacks a column. The error names it.
        InvalidFilter: The filter is not valid, or does not fit the topic's columns.
    """
    view = View.of(topic.name, topic.schema, wanted.names, filter=filter)
    fields = [
        field.with_type(asked.type).with_nullable(asked.nullable)
        if widens(asked.type, field.type) or widens(field.type, asked.type)
        else field.with_nullable(asked.nullable)
        for field, asked in zip(view.schema, wanted, strict=True)
    ]
    return dataclasses.replace(view, schema=pa.schema(fields))

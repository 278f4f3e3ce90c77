"""The actions of the console. Each is planned, shown, and applied at most once (``plans``).

An action is a class whose fields are its parameters. ``plan`` reads the present state and returns
its effect. ``apply`` carries out exactly that plan with the calls of the command line, as the user
who has logged in, so the brokers check the permissions. The calls name the ids of topics, so they
have no effect on a topic that was created again after the plan.

``basis`` is the state that a plan depends on. If it has changed, the plan is not applied, and the
answer has a new plan.
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

import msgspec
import pyarrow as pa
from msgspec import Struct

from spark_stream.access.rules import Needs
from spark_stream.client.administration import describe_transaction, kill_transaction
from spark_stream.client.topics import Place
from spark_stream.consistency.isolation import Isolation
from spark_stream.console.client import ConsoleClient, plain
from spark_stream.console.problems import about, counted
from spark_stream.errors import (
    InvalidOption,
    InvalidRequest,
    InvalidTopic,
    InvalidTransaction,
    PermissionDenied,
    TopicExists,
    UnknownTopic,
)
from spark_stream.sql.ddl import parse_altered, parse_schema, schema_text
from spark_stream.wire import consumer_messages, topic_messages, transaction_messages
from spark_stream.wire.cluster_messages import DescribeCluster
from spark_stream.wire.cluster_messages import ElectPreferred as ElectPreferredLeaders
from spark_stream.wire.topic_messages import TopicDescription


class Plan(Struct, frozen=True):
    """The effect of an action on the present state, in sentences and as a table.

    ``button``: the words of the button that applies it, "" if nothing would change. ``typed``: a
    text that the user must type before a destructive action. ``detail``: the input of ``apply``.
    """

    effect: str
    button: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str | int | None, ...], ...] = ()
    typed: str = ""
    basis: Any = None
    detail: Any = None

    def shown(self, token: str) -> dict[str, Any]:
        """Return the plan for the page."""
        names = ("effect", "button", "columns", "rows", "typed")
        return {"token": token} | {name: plain(getattr(self, name)) for name in names}


class _Action(Struct, frozen=True, tag_field="action", forbid_unknown_fields=True):
    """The base of actions. ``needs``: the permissions of its main call, from the same fields."""

    needs: ClassVar[Needs]

    def plan(self, client: ConsoleClient) -> Plan:
        """Return the effect on the present state. Change nothing."""
        raise NotImplementedError

    def apply(self, client: ConsoleClient, plan: Plan) -> str:
        """Carry out the plan. Return the outcome as a sentence."""
        raise NotImplementedError


class CreateTopic(_Action, tag="create-topic", frozen=True):
    """Create a topic. ``columns``: in Spark's syntax, by default those of Kafka."""

    topic: str
    partitions: int | None = None
    replication_factor: int | None = None
    columns: str = ""
    config: dict[str, str] = {}
    needs: ClassVar[Needs] = topic_messages.CreateTopic.needs

    def plan(self, client: ConsoleClient) -> Plan:
        columns = schema_text(parse_schema(self.columns)) if self.columns else "those of Kafka"
        with suppress(UnknownTopic, PermissionDenied):
            client.topics.describe(self.topic)
            raise TopicExists(f"topic {self.topic!r} exists", topic=self.topic)
        replicas = self.replication_factor or "the cluster's default"
        rows = (
            ("Partitions", self.partitions or 1),
            ("Replication factor", replicas),
            ("Columns", columns),
            *sorted(self.config.items()),
        )
        effect = f"A new topic {self.topic} can be written to and read."
        return Plan(effect, "Create the topic", ("Setting", "Value"), rows)

    def apply(self, client: ConsoleClient, plan: Plan) -> str:
        columns = self.columns or None
        made = client.log.create_topic(
            self.topic, self.partitions, self.replication_factor, columns, self.config
        )
        return f"Created topic {self.topic} with {counted(len(made.partitions), 'partition')}."


class AlterTopic(_Action, tag="alter-topic", frozen=True):
    """Add partitions or columns, or change settings. ``columns``: the added ones, or ``schema``."""

    topic: str
    partitions: int | None = None
    columns: str = ""
    schema: str = ""
    config: dict[str, str] = {}
    needs: ClassVar[Needs] = topic_messages.AlterTopic.needs

    def plan(self, client: ConsoleClient) -> Plan:
        if self.columns and self.schema:
            raise InvalidOption("added columns and a schema exclude each other", hint="Give one.")
        found, schema = client.topics.describe(self.topic), None
        if self.schema:
            schema = parse_altered(self.schema)
        elif self.columns:
            schema = _extended(found, self.columns)
        count = len(found.partitions)
        rows: list[tuple[str | int | None, ...]] = []
        if self.partitions is not None:
            if self.partitions < count:
                raise InvalidTopic(
                    f"topic {self.topic!r} has {counted(count, 'partition')} and cannot have fewer",
                    hint="Give a greater number.",
                    topic=self.topic,
                )
            rows.append(("Partitions", count, self.partitions))
        if schema is not None:
            rows.append(("Columns", schema_text(found.schema), schema_text(schema)))
        rows += [(name, found.config.get(name), value) for name, value in self.config.items()]
        if not rows:
            raise InvalidOption("nothing to change", hint="Fill in a field.")
        has_effect = any(now != new for _, now, new in rows)
        effect = (
            f"Topic {self.topic} changes for all its readers and writers, which continue."
            if has_effect
            else f"Topic {self.topic} stays as it is. It has these settings already."
        )
        if self.partitions is not None and self.partitions > count:
            effect += " New records of a key may go to another partition than its old records."
        return Plan(
            effect,
            "Alter the topic" if has_effect else "",
            ("Setting", "Now", "New"),
            tuple(rows),
            basis=(found.id, count, found.schema_version, found.config),
            detail=(found.id, schema),
        )

    def apply(self, client: ConsoleClient, plan: Plan) -> str:
        topic_id, schema = plan.detail
        client.topics.alter(
            self.topic, self.partitions, self.config, schema=schema, topic_id=topic_id
        )
        return f"Altered topic {self.topic}."


class RemoveTopic(_Action, tag="delete-topic", frozen=True):
    """Delete a topic, and no later topic of its name."""

    topic: str
    needs: ClassVar[Needs] = topic_messages.DeleteTopic.needs

    def plan(self, client: ConsoleClient) -> Plan:
        found = client.topics.describe(self.topic)
        rows = tuple(
            (each.partition, each.log_start_offset, each.log_end_offset, each.size)
            for each in found.partitions
        )
        return Plan(
            f"Topic {self.topic} and all its records are deleted from all brokers. This cannot be"
            " undone.",
            "Delete the topic",
            ("Partition", "First offset", "End", "Bytes"),
            rows,
            typed=self.topic,
            basis=found.id,
        )

    def apply(self, client: ConsoleClient, plan: Plan) -> str:
        client.topics.drop(self.topic)
        try:
            client.connection.call(
                topic_messages.DeleteTopic(topic=self.topic, topic_id=plan.basis)
            )
        except UnknownTopic as error:
            if "topic_id" in error.details:  # there is a later one
                raise
        return f"Deleted topic {self.topic}."


class TrimTopic(_Action, tag="trim-topic", frozen=True):
    """Delete the records before an offset, a time or ``latest``."""

    topic: str
    before: str
    partitions: list[int] | None = None
    needs: ClassVar[Needs] = topic_messages.TrimTopic.needs

    def plan(self, client: ConsoleClient) -> Plan:
        place = position(self.before)
        found = client.log.plan_trim(self.topic, place, partitions=self.partitions)
        rows = []
        for number, at in sorted(found.before.items()):
            start = found.log_starts[number]
            rows.append((number, start, max(start, at), max(0, at - start)))
        effect = (
            f"This deletes {counted(found.records, 'record')} of topic {self.topic}. It cannot be"
            " undone."
            if found.records
            else f"Topic {self.topic} has no records before this position. Nothing is deleted."
        )
        return Plan(
            effect,
            "Delete these records" if found.records else "",
            ("Partition", "First offset", "New first offset", "Deleted"),
            tuple(rows),
            typed=self.topic if found.records else "",
            basis=(found.topic_id, dict(found.log_starts)),
            detail=found,
        )

    def apply(self, client: ConsoleClient, plan: Plan) -> str:
        client.log.trim(self.topic, plan.detail)
        return f"Trimmed topic {self.topic}: {counted(plan.detail.records, 'record')} deleted."


class ResetConsumer(_Action, tag="reset-consumer", frozen=True):
    """Move the positions of a client consumer or a group."""

    consumer: str
    to: str
    topics: list[str] | None = None
    partitions: list[int] | None = None
    isolation: str = "read_uncommitted"
    needs: ClassVar[Needs] = consumer_messages.TakeConsumer.needs

    def plan(self, client: ConsoleClient) -> Plan:
        try:
            isolation = Isolation(self.isolation)
        except ValueError:
            raise InvalidOption(f"{self.isolation!r} is not an isolation level") from None
        place = position(self.to)
        found = client.named.plan_reset(
            self.consumer, place, self.topics, self.partitions, isolation
        )
        moves = [(at.topic, at.partition, at.before, at.after) for at in found.moved]
        rows = tuple((*move, _change(move[2], move[3])) for move in moves)
        ids = [each.topic_id for each in found.positions]
        has_effect = any(before != after for _, _, before, after in moves)
        effect = (
            f"The next consumer of {self.consumer} starts at these offsets. A running consumer of"
            " this name gets an error."
            if has_effect
            else f"All positions of {self.consumer} stay as they are."
        )
        return Plan(
            effect,
            "Reset the consumer" if has_effect else "",
            ("Topic", "Partition", "From", "To", "Effect"),
            rows,
            basis=([move[:3] for move in moves], ids),
            detail=found,
        )

    def apply(self, client: ConsoleClient, plan: Plan) -> str:
        client.named.apply_reset(plan.detail, if_unmoved=True)
        return f"Reset {self.consumer} in {counted(len(plan.rows), 'partition')}."


class AbortTransaction(_Action, tag="abort-transaction", frozen=True):
    """Abort the open transaction of an id and a number."""

    transactional_id: str
    number: int
    needs: ClassVar[Needs] = transaction_messages.KillTransaction.needs

    def plan(self, client: ConsoleClient) -> Plan:
        found = describe_transaction(client.connection, self.transactional_id)
        if found.number != self.number or found.state != "open":
            raise InvalidTransaction(
                f"this transaction of {self.transactional_id!r} is not open",
                hint="Reload the list.",
            )
        age_s = max(0, round(time.time() - found.began_ms / 1000))
        owner = f", owned by {found.principal}" if found.principal else ""
        rows = tuple((at.topic, at.partition, at.held_back) for at in found.partitions)
        wrote = (
            f"Its records in {counted(len(rows), 'partition')} are never visible to read_committed."
            if rows
            else "It has no records yet."
        )
        return Plan(
            f"The transaction of {self.transactional_id}, open for {about(age_s)}"
            f"{owner}, is aborted. {wrote} Its producer is fenced, and its next call fails. This"
            " cannot be undone.",
            "Abort the transaction",
            ("Topic", "Partition", "Records held back") if rows else (),
            rows,
            basis=found.producer_id,
        )

    def apply(self, client: ConsoleClient, plan: Plan) -> str:
        kill_transaction(client.connection, self.transactional_id, self.number)
        return f"Aborted the transaction of {self.transactional_id}."


class ElectPreferred(_Action, tag="elect-preferred", frozen=True):
    """Elect the first replica of each partition, in a topic or in all topics."""

    topic: str = ""
    needs: ClassVar[Needs] = ElectPreferredLeaders.needs

    def plan(self, client: ConsoleClient) -> Plan:
        rows: list[tuple[str | int | None, ...]] = []
        ids, unable, dead = [], 0, _dead_brokers(client)
        for name in [self.topic] if self.topic else client.topics.names():
            try:
                topic = client.topics.describe(name)
            except UnknownTopic:
                if self.topic:
                    raise
                continue  # it was deleted a moment ago
            others = [each for each in topic.partitions if each.leader != each.replicas[0]]
            moving = [
                each
                for each in others
                if each.replicas[0] in each.isr and each.replicas[0] not in dead
            ]
            unable += len(others) - len(moving)
            rows += [(name, each.partition, each.leader, each.replicas[0]) for each in moving]
            ids += [topic.id] if moving else []
        effect = (
            f"The leader of {counted(len(rows), 'partition')} changes. Writers and readers"
            " continue at the new leader after a moment."
            if rows
            else "No leader changes."
        )
        if unable:
            effect += f" {counted(unable, 'preferred leader')} cannot lead: dead or not in sync."
        elif not rows:
            effect += " Each partition has its preferred leader."
        return Plan(
            effect,
            "Elect the preferred leaders" if rows else "",
            ("Topic", "Partition", "Leader", "New leader") if rows else (),
            tuple(rows),
            basis=(rows, ids),
            detail=ids,
        )

    def apply(self, client: ConsoleClient, plan: Plan) -> str:
        call = ElectPreferredLeaders(topic_ids=plan.detail)
        moved = client.connection.call(call).elected
        return f"Changed the leader of {counted(moved, 'partition')}."


Action = (
    CreateTopic
    | AlterTopic
    | RemoveTopic
    | TrimTopic
    | ResetConsumer
    | AbortTransaction
    | ElectPreferred
)
_PARSER: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(Action)


def parse_action(body: bytes) -> Action:
    """Parse the body of a request for a plan.

    Raises:
        InvalidRequest: it is no action, or a parameter is missing or invalid.
    """
    try:
        action: Action = _PARSER.decode(body)
        return action
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body is not an action: {error}") from None


def position(text: str) -> Place:
    """Parse ``earliest``, ``latest``, an offset, or a time in ISO 8601, in UTC without a zone."""
    if text in ("earliest", "latest"):
        return text
    try:
        if text.isascii() and text.isdecimal():
            return int(text)
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return moment.astimezone(UTC)  # fails for some times near the years 1 and 9999
    except (ValueError, OverflowError):
        raise InvalidOption(
            f"a position is earliest, latest, an offset or a time, not {text[:50]!r}",
            hint="A time is 2024-05-01 or 2024-05-01T12:30:00Z.",
        ) from None


def _dead_brokers(client: ConsoleClient) -> set[str]:
    """Return the dead brokers, none if the user may not describe the cluster."""
    try:
        found = client.connection.call(DescribeCluster()).brokers
    except PermissionDenied:
        return set()
    return {each.id for each in found if not each.alive}


def _extended(found: TopicDescription, columns: str) -> pa.Schema:
    schema = found.schema
    for each in parse_schema(columns):
        schema = schema.append(each)
    return schema


def _change(before: int | None, after: int) -> str:
    if before is None or before == after:
        return "new position" if before is None else "unchanged"
    if after > before:
        return f"{counted(after - before, 'record')} skipped"
    return f"{counted(before - after, 'record')} repeated"

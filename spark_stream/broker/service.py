"""The Flight service: turns calls into appends, fetches and actions, and errors into Flight's.

Any Flight client finds its way: ``ListFlights`` names the topics, ``GetFlightInfo`` of a path
[topic] or [topic, partition] gives one endpoint a partition, and its ticket reads that partition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pyarrow.flight as fl

from spark_stream.broker.actions import run_action
from spark_stream.broker.activity import Activity
from spark_stream.broker.appending import serve_appends, target_of
from spark_stream.broker.fetching import Answer, FetchStream, bound
from spark_stream.broker.fetching_many import FetchManyStream
from spark_stream.broker.here import Here
from spark_stream.broker.host import Host
from spark_stream.broker.identity import Identity
from spark_stream.broker.keepalive import Keepalive, WatchedReader, WatchedWriter
from spark_stream.broker.memory import memory_errors
from spark_stream.broker.peers import RUN_STEPS
from spark_stream.broker.replication.leader_stream import Sent
from spark_stream.broker.replication.leading import Leading
from spark_stream.broker.step_table import StepTable
from spark_stream.broker.steps import run_steps
from spark_stream.broker.transactions import TransactionDesk
from spark_stream.broker.waiting import WaitingReads
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.isolation import Bounds
from spark_stream.consistency.transactions import Joined
from spark_stream.environment import Clock
from spark_stream.errors import BrokerUnavailable, InternalError, IsologError, Unsupported
from spark_stream.scripts.steps import read_bounds
from spark_stream.wire.actions import ACTIONS
from spark_stream.wire.addresses import location
from spark_stream.wire.fetch_messages import FetchMany, ReadTopic, ticket_from_bytes
from spark_stream.wire.flight import to_flight
from spark_stream.wire.replication_messages import BODY, OpenReplication

logger = logging.getLogger(__name__)


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Every error leaves the broker typed; one that nobody foresaw is logged with its trace."""
    try:
        yield
    except IsologError as error:
        raise to_flight(error) from None
    except (fl.FlightError, GeneratorExit):
        raise
    except Exception as error:
        logger.exception("%s", what)
        raise to_flight(InternalError(f"{what}: {type(error).__name__}: {error}")) from None


class FlightService(fl.FlightServerBase):
    """One broker's service at one location. It serves from its construction on."""

    def __init__(
        self,
        bind: str,
        host: Host,
        desk: TransactionDesk,
        table: StepTable,
        me: Identity,
        here: Callable[[int], Here],
        reachable: Callable[[int], str],
        activity: Activity,
        keepalive: Keepalive,
        clock: Clock,
        memory_bytes: int,
        leading: Leading | None = None,
        boot_id: str | None = None,
    ) -> None:
        """``here`` and ``reachable`` take the port that was bound (0: none, a Unix socket).

        ``boot_id``: that of this machine, if readers on it may map the files.
        """
        self._host = host
        self._desk = desk
        self._activity = activity
        self._keepalive = keepalive
        self._clock = clock
        self._waiting = WaitingReads(clock)
        self._table = table
        self._me = me
        self._here: Here | None = None
        self._memory_bytes = memory_bytes
        self._leading = leading
        self._boot_id = boot_id
        super().__init__(bind)
        self._location = reachable(self.port)
        self._here = here(self.port)

    def do_put(
        self,
        context: fl.ServerCallContext,
        descriptor: fl.FlightDescriptor,
        reader: fl.MetadataRecordBatchReader,
        writer: fl.FlightMetadataWriter,
    ) -> None:
        if self._leading is not None and descriptor.descriptor_type == fl.DescriptorType.CMD:
            opened = OpenReplication.from_command(descriptor.command)
            if opened is not None:
                with self._activity.call(), translated("replication"):
                    self._leading.listen(opened, reader)
                return
        with (
            self._activity.call(),
            translated("append"),
            self._keepalive.call(context.peer()) as call,
        ):
            batches, acks = (
                WatchedReader(reader, call, self._memory_bytes),
                WatchedWriter(writer, call),
            )
            target = target_of(descriptor)
            serve_appends(self._host, self._desk, target, batches, acks, self._clock)

    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.FlightDataStream:
        with self._activity.call(), translated("fetch"):
            opened = OpenReplication.from_command(ticket.ticket)
            if opened is not None and self._leading is not None:
                said = self._leading.open(context.peer(), opened)
                return fl.GeneratorStream(BODY, self._replicated(said))
            stream: FetchStream | FetchManyStream
            request, cancelled = ticket_from_bytes(ticket.ticket), context.is_cancelled
            if isinstance(request, FetchMany):
                stream = FetchManyStream(self._host, request, cancelled, self._waiting)
            else:
                limit_s = self._keepalive.limit_s
                stream = FetchStream(
                    self._host, request, cancelled, self._waiting, limit_s, boot_id=self._boot_id
                )
            return fl.GeneratorStream(stream.schema, self._answers(stream, context.peer()))

    def _replicated(self, said: Iterator[Sent]) -> Iterator[Sent]:
        with self._activity.call(), translated("replication"):
            yield from said

    def _answers(self, stream: FetchStream | FetchManyStream, peer: str) -> Iterator[Answer]:
        with (
            self._activity.call(),
            translated("fetch"),
            memory_errors(self._memory_bytes),
            self._keepalive.call(peer) as call,
        ):
            for answer in stream.answers():
                with call.writing():
                    yield answer

    def do_exchange(
        self,
        context: fl.ServerCallContext,
        descriptor: fl.FlightDescriptor,
        reader: fl.MetadataRecordBatchReader,
        writer: fl.MetadataRecordBatchWriter,
    ) -> None:
        with self._activity.call(), translated("exchange"):
            raise Unsupported("there is no DoExchange: DoPut appends, DoGet reads")

    def do_action(self, context: fl.ServerCallContext, action: fl.Action) -> Iterator[fl.Result]:
        with self._activity.call(), translated(f"action {action.type}"):
            if self._here is None:
                raise BrokerUnavailable("the broker is still starting")
            body = action.body.to_pybytes()
            if action.type == RUN_STEPS:
                return iter([fl.Result(run_steps(self._table, self._me, body))])
            return iter([fl.Result(run_action(self._here, action.type, body).to_bytes())])

    def list_actions(self, context: fl.ServerCallContext) -> list[tuple[str, str]]:
        return [(name, str(action)) for name, action in ACTIONS.items()]

    def list_flights(
        self, context: fl.ServerCallContext, criteria: bytes
    ) -> Iterator[fl.FlightInfo]:
        with self._activity.call(), translated("list"):
            return iter([self._info(ReadTopic(topic=name)) for name in self._host.names()])

    def get_flight_info(
        self, context: fl.ServerCallContext, descriptor: fl.FlightDescriptor
    ) -> fl.FlightInfo:
        with self._activity.call(), translated("info"):
            if descriptor.descriptor_type == fl.DescriptorType.CMD:
                return self._info(ReadTopic.from_bytes(descriptor.command))
            target = target_of(descriptor)
            return self._info(ReadTopic(topic=target.request.topic, partition=target.partition))

    def get_schema(
        self, context: fl.ServerCallContext, descriptor: fl.FlightDescriptor
    ) -> fl.SchemaResult:
        return fl.SchemaResult(self.get_flight_info(context, descriptor).schema)

    def _info(self, asked: ReadTopic) -> fl.FlightInfo:
        """Return what is asked for as one endpoint for each partition, at its leader."""
        hosted = self._host.topic(asked.topic, asked.topic_id)
        topic, path = hosted.topic, [asked.topic]
        numbers: Iterable[int] = range(topic.partitions)
        if asked.partition is not None:
            hosted.check_number(asked.partition)
            path, numbers = [*path, str(asked.partition)], [asked.partition]
        fetches = [asked.fetch(each) for each in numbers]
        _, projection, _ = bound(self._host, fetches[0])  # so that a bad filter is refused now
        places = [Joined(topic.name, topic.id, each.partition) for each in fetches]
        bounds = self._desk.run(read_bounds(places))
        return fl.FlightInfo(
            projection.schema,
            fl.FlightDescriptor.for_path(*path),
            [
                fl.FlightEndpoint(each.to_bytes(), self._locations(topic, each.partition))
                for each in fetches
            ],
            sum(_records(each) for each in bounds),
            -1,
        )

    def _locations(self, topic: Topic, number: int) -> list[str]:
        """Where the partition's leader is; nowhere while it has none."""
        record = self._host.record(topic, number)
        leader = None if record is None else record.leader
        if leader == self._host.broker_id:
            return [self._location]
        known = None if leader is None else self._host.view.now.brokers.get(leader)
        return [] if known is None else [location(known.address)]


def _records(found: Bounds | IsologError) -> int:
    if isinstance(found, IsologError):
        return 0
    return int(found.log_end_offset - found.log_start_offset)


def location_of(scheme: str, host: str, port: int) -> str:
    """A Flight location; IPv6 addresses are put in brackets."""
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port}"

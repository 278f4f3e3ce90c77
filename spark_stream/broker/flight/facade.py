"""The Flight facade: appends, fetches and actions for clients in any language, if it is configured.

Any Flight client can discover the data: ``ListFlights`` returns the topics, ``GetFlightInfo`` of a
path [topic] or [topic, partition] returns one endpoint per partition, and the endpoint's ticket
reads that partition.

Errors: the ``extra_info`` of a Flight error has our JSON object. Its size is limited
(``limits.ERROR_BYTES_MAX``), and an error may name all columns of a table. Longer texts and details
are shortened.
"""

from __future__ import annotations

import os
import time
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.flight as fl
from msgspec.structs import replace

from spark_stream.access.rules import Operation, Resource, ResourceKind
from spark_stream.broker.access.authorizer import ConnectionIdentity, StreamPermit
from spark_stream.broker.access.quotas import LOOK_S, Throttle
from spark_stream.broker.actions.context import BrokerContext
from spark_stream.broker.actions.running import run_call
from spark_stream.broker.actions.transactions import check_id_owner
from spark_stream.broker.serving.append_stream import AppendFrame, AppendStream, AppendStreams
from spark_stream.broker.serving.fetch_task import blocking_answers
from spark_stream.broker.serving.fetching import Answer, FetchStream, bind_request
from spark_stream.broker.serving.memory import memory_error, memory_errors
from spark_stream.broker.serving.pool import Activity
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.isolation import Bounds
from spark_stream.consistency.transactions.transactions import Joined
from spark_stream.counting import NamedCounts
from spark_stream.errors import (
    BrokerBusy,
    InternalError,
    InvalidRequest,
    IsologError,
    PortInUse,
    RequestTimeout,
    Unauthenticated,
    UnknownPartition,
    Unsupported,
)
from spark_stream.loggers import logger_of
from spark_stream.protocol import Bytes, nbytes_of
from spark_stream.scripts.steps import read_bounds
from spark_stream.transport.tls import TlsFiles
from spark_stream.wire.access_messages import Authenticate
from spark_stream.wire.addresses import UNIX
from spark_stream.wire.calls import CALLS
from spark_stream.wire.limits import ERROR_BYTES_MAX
from spark_stream.wire.messages import json_bytes
from spark_stream.wire.stream_messages import AppendTo, Fetch, ReadTopic

logger = logger_of(__name__)

_ANSWERS_MAX: Final = 1024
_CREDENTIAL: Final = "credential"
_PASSWORD_S: Final = 1.0
_CUT: Final = "…"
_DETAIL_BYTES_MAX: Final = 200


def location(address: str, *, tls: bool = False) -> str:
    """Return the Flight location of an address.

    The path of a Unix socket is quoted twice, because both Arrow and gRPC decode it, at servers and
    at clients.
    """
    if address.startswith(UNIX):
        return f"grpc+unix://{quote(quote(os.fsencode(address.removeprefix(UNIX))))}"
    return f"grpc+tls://{address}" if tls else f"grpc://{address}"


@contextmanager
def translated(what: str, refused: NamedCounts | None = None) -> Iterator[None]:
    """Convert every error to a typed Flight error. Log an unexpected one with its traceback.

    ``refused`` counts the typed errors. ``what`` names the call.
    """
    try:
        yield
    except IsologError as error:
        if refused is not None:
            refused.add(error.code)
        raise to_flight(error) from None
    except (fl.FlightError, GeneratorExit):
        raise
    except Exception as error:
        logger.exception("unexpected error in Flight call %s", what)
        raise to_flight(InternalError(f"{what}: {type(error).__name__}: {error}")) from None


class FlightFacade(fl.FlightServerBase):
    """A broker's server for Flight clients in any language. It serves from its construction on."""

    def __init__(
        self,
        address: str,
        here: BrokerContext,
        activity: Activity,
        appends: AppendStreams,
        memory_bytes: int,
        tls: TlsFiles | None = None,
        *,
        requires_client: bool = False,
    ) -> None:
        """Listen at ``address``. ``tls`` has the certificate and the clients' authorities.

        Raises:
            PortInUse: the address cannot be opened.
        """
        self._here = here
        self._refused = here.host.counts.refused
        self._speaks_tls = tls is not None
        self._activity = activity
        self._appends = appends
        self._memory_bytes = memory_bytes
        self._one_password = Lock()
        where = location(address, tls=self._speaks_tls)
        middleware = {
            _CREDENTIAL: _CredentialFactory(is_required=here.authorizer.requires_authentication)
        }
        protection: dict[str, object] = {}
        if tls is not None:
            assert tls.cert is not None
            pair = Path(tls.cert).read_bytes(), Path(tls.key or tls.cert).read_bytes()
            protection = {
                "tls_certificates": [pair],
                "root_certificates": None if tls.ca is None else Path(tls.ca).read_bytes(),
                "verify_client": requires_client,
            }
        try:
            super().__init__(where, middleware=middleware, **protection)
        except pa.ArrowException as error:  # its text has no reason
            raise PortInUse(f"flight_listen: {address}: {error}") from None

    def _identity(self, context: fl.ServerCallContext) -> ConnectionIdentity:
        """Identify the caller by the call's header, or else by the client's certificate.

        Raises:
            Unauthenticated: the call has neither, and authentication is required.
        """
        address = context.peer().removeprefix("ipv4:").removeprefix("ipv6:")
        middleware = context.get_middleware(_CREDENTIAL)
        if middleware is not None:
            identity = ConnectionIdentity(address, None)
            with self._checking(middleware.credential):
                self._here.authorizer.authenticate(identity, middleware.credential)
            return identity
        name = (context.peer_identity() or b"").decode("utf-8", "replace")
        caller = self._here.authorizer.identify([name] if name else [], address, is_local=False)
        identity = ConnectionIdentity(address, caller)
        identity.known()
        return identity

    @contextmanager
    def _checking(self, credential: Authenticate) -> Iterator[None]:
        """Serialise password checks, because each call has a thread and many may arrive."""
        if credential.password is None:
            yield
            return
        if not self._one_password.acquire(timeout=_PASSWORD_S):
            raise BrokerBusy("other passwords are being checked", hint="Use a token.")
        try:
            yield
        finally:
            self._one_password.release()

    def _for(self, context: fl.ServerCallContext) -> BrokerContext:
        """Return the broker's context for the caller."""
        return replace(self._here, caller=self._identity(context).known())

    def do_put(
        self,
        context: fl.ServerCallContext,
        descriptor: fl.FlightDescriptor,
        reader: fl.MetadataRecordBatchReader,
        writer: fl.FlightMetadataWriter,
    ) -> None:
        with self._activity.call(), translated("append", self._refused):
            request, partition = target_of(descriptor)
            identity = self._identity(context)
            throttle = Throttle(self._here.quotas, identity.known(), Operation.WRITE)
            put = _PutClient(
                self._appends, writer.write, throttle, (request, reader.schema), partition
            )
            stream = put.stream
            admitted = self._here.authorizer.admit(identity, request.needs(), stream.refuse)
            if request.transactional_id is not None:
                here = replace(self._here, caller=identity.known())
                check_id_owner(here, request.transactional_id)
            put.pause(context.is_cancelled)
            with put.answering():
                stream.work()  # opens it
                try:
                    frames = self._frames(reader)
                    while put.failure is None and (frame := next(frames, None)) is not None:
                        stream.take(frame)
                        put.go.wait()
                        put.go.clear()
                        stream.work()
                        put.pause(context.is_cancelled)
                finally:
                    stream.end()
                    put.over.wait()
            del admitted  # held until here
            if put.failure is not None:
                raise put.failure

    def _frames(self, reader: fl.MetadataRecordBatchReader) -> Iterator[AppendFrame]:
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            except pa.ArrowMemoryError:
                raise memory_error(self._memory_bytes) from None
            except fl.FlightError:
                raise
            except (pa.ArrowException, OSError) as error:
                raise InvalidRequest(f"the stream is not valid Arrow IPC: {error}") from None
            if chunk.data is None:
                raise InvalidRequest("a message of the stream has no batch")
            envelope = chunk.app_metadata
            header = b"" if envelope is None else envelope.to_pybytes()
            yield AppendFrame(header, chunk.data, chunk.data.nbytes)

    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.FlightDataStream:
        with self._activity.call(), translated("fetch", self._refused):
            host, clock, cancelled = self._here.host, self._here.clock, context.is_cancelled
            request = Fetch.from_bytes(ticket.ticket)
            refusal = _Refusal()
            identity = self._identity(context)
            admitted = self._here.authorizer.admit(identity, request.needs(), refusal.set)
            throttle = Throttle(self._here.quotas, identity.known(), Operation.READ)
            stream = FetchStream(host, request, cancelled, clock)
            answers = self._answers(stream, admitted, refusal, throttle, cancelled)
            return fl.GeneratorStream(stream.schema, answers)

    def _answers(
        self,
        stream: FetchStream,
        admitted: StreamPermit,
        refusal: _Refusal,
        throttle: Throttle,
        cancelled: Callable[[], bool],
    ) -> Iterator[Answer]:
        """Yield the answers until the call is refused. Hold ``admitted`` until the end."""
        with (
            self._activity.call(),
            translated("fetch", self._refused),
            memory_errors(self._memory_bytes),
        ):
            _pause(throttle, throttle.charge(0), cancelled)
            for answer in blocking_answers(stream.answers(), self._here.clock, refusal.check):
                refusal.check()
                yield answer
                records = answer[0]
                nbytes = nbytes_of(records) if isinstance(records, tuple) else records.nbytes
                _pause(throttle, throttle.charge(nbytes), refusal.is_set, cancelled)
            del admitted

    def do_exchange(
        self,
        context: fl.ServerCallContext,
        descriptor: fl.FlightDescriptor,
        reader: fl.MetadataRecordBatchReader,
        writer: fl.MetadataRecordBatchWriter,
    ) -> None:
        with self._activity.call(), translated("exchange", self._refused):
            raise Unsupported("DoExchange is not supported; append with DoPut and read with DoGet")

    def do_action(self, context: fl.ServerCallContext, action: fl.Action) -> Iterator[fl.Result]:
        with self._activity.call(), translated(f"action {action.type}", self._refused):
            answer = run_call(self._for(context), action.type, action.body.to_pybytes())
            return iter([fl.Result(answer)])

    def list_actions(self, context: fl.ServerCallContext) -> list[tuple[str, str]]:
        return [(name, call.signature()) for name, call in CALLS.items()]

    def list_flights(
        self, context: fl.ServerCallContext, criteria: bytes
    ) -> Iterator[fl.FlightInfo]:
        with self._activity.call(), translated("list", self._refused):
            here = self._for(context)
            names = [
                each for each in here.host.names() if here.may_describe(ResourceKind.TOPIC, each)
            ]
            return iter([self._info(here, ReadTopic(topic=name)) for name in names])

    def get_flight_info(
        self, context: fl.ServerCallContext, descriptor: fl.FlightDescriptor
    ) -> fl.FlightInfo:
        with self._activity.call(), translated("info", self._refused):
            if descriptor.descriptor_type == fl.DescriptorType.CMD:
                asked = ReadTopic.from_bytes(descriptor.command)
            else:
                request, partition = target_of(descriptor)
                asked = ReadTopic(topic=request.topic, partition=partition)
            here = self._for(context)
            need = Operation.DESCRIBE, Resource(ResourceKind.TOPIC, asked.topic)
            here.authorizer.check(here.caller, [need])
            return self._info(here, asked)

    def get_schema(
        self, context: fl.ServerCallContext, descriptor: fl.FlightDescriptor
    ) -> fl.SchemaResult:
        return fl.SchemaResult(self.get_flight_info(context, descriptor).schema)

    def _info(self, here: BrokerContext, asked: ReadTopic) -> fl.FlightInfo:
        """Return the requested topic or partition, with an endpoint per partition at its leader."""
        hosted = here.host.topic(asked.topic, asked.topic_id)
        topic, path = hosted.topic, [asked.topic]
        numbers: Iterable[int] = range(topic.partitions)
        if asked.partition is not None:
            hosted.check_number(asked.partition)
            path, numbers = [*path, str(asked.partition)], [asked.partition]
        fetches = [asked.fetch(each) for each in numbers]
        # This refuses a bad filter now.
        _, projection, _ = bind_request(self._here.host, fetches[0].ranges[0])
        places = [Joined(topic.name, topic.id, each) for each in numbers]
        bounds = self._here.transactions.run(read_bounds(places))
        return fl.FlightInfo(
            projection.schema,
            fl.FlightDescriptor.for_path(*path),
            [
                fl.FlightEndpoint(each.to_bytes(), self._locations(topic, number))
                for number, each in zip(numbers, fetches, strict=True)
            ],
            sum(_records(each) for each in bounds),
            -1,
        )

    def _locations(self, topic: Topic, number: int) -> list[str]:
        """Return the Flight location of the partition's leader, if it serves Flight."""
        host = self._here.host
        record = host.record(topic, number)
        leader = None if record is None else record.leader
        known = None if leader is None else host.view.now.brokers.get(leader)
        return (
            [location(known.flight, tls=self._speaks_tls)]
            if known is not None and known.flight
            else []
        )


class _Credential(fl.ServerMiddleware):
    """The credential in a call's header."""

    def __init__(self, credential: Authenticate) -> None:
        self.credential = credential


class _CredentialFactory(fl.ServerMiddlewareFactory):
    """A reader of each call's ``authorization`` header: a bearer token, or user and password."""

    def __init__(self, *, is_required: bool) -> None:
        self._is_required = is_required

    def start_call(
        self, info: fl.CallInfo, headers: Mapping[str, Sequence[str]]
    ) -> _Credential | None:
        for name, values in headers.items():
            if name.lower() == "authorization" and values and self._is_required:
                with translated("authorization"):
                    return _Credential(_credential(values[0]))
        return None


def _credential(header: str) -> Authenticate:
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return Authenticate(token=value.strip())
    if scheme.lower() == "basic":
        try:
            user, _, password = b64decode(value.strip(), validate=True).decode().partition(":")
        except (ValueError, UnicodeDecodeError):
            raise InvalidRequest("the authorization header is not valid base64") from None
        return Authenticate(user=user, password=password)
    raise InvalidRequest("the authorization header must be `Bearer TOKEN` or `Basic BASE64`")


class _Refusal:
    """The error that ends an admitted call, once it is refused."""

    def __init__(self) -> None:
        self._error: IsologError | None = None

    def set(self, error: IsologError) -> None:
        self._error = self._error or error

    def is_set(self) -> bool:
        return self._error is not None

    def check(self) -> None:
        if self._error is not None:
            raise self._error


class _PutClient:
    """The client of a DoPut. A separate thread writes the answers, because a write may block."""

    def __init__(
        self,
        appends: AppendStreams,
        write: Callable[[bytes], None],
        throttle: Throttle,
        opening: tuple[AppendTo, pa.Schema],
        partition: int | None,
    ) -> None:
        self._write = write
        self._is_gone = False
        self._opening = opening
        self._throttle = throttle
        self._mark = throttle.charge(0)  # earlier charges
        self._answers: SimpleQueue[bytes | None] = SimpleQueue()
        self._is_full = False
        self.go = Event()
        """Set when the reading thread has work to do."""
        self.over = Event()
        self.failure: IsologError | None = None
        self.stream = AppendStream(appends, self, self._open, self.over.set, partition, self.go.set)

    def _open(self) -> tuple[AppendTo, pa.Schema]:
        return self._opening

    def send(self, header: Bytes, /, *, end: bool = False, more: bool = False) -> bool:
        self._is_full = not end  # first: the other thread checks it after each answer
        if not end and self._answers.qsize() < _ANSWERS_MAX:
            self._is_full = False
            self._answers.put(bytes(header))
        return not self._is_full

    def grant_credit(self, size: int, /) -> None:
        """Charge the quota. gRPC has its own flow control."""
        self._mark = self._throttle.charge(size)

    def pause(self, cancelled: Callable[[], bool]) -> None:
        """Sleep for the time that the quota requires."""
        _pause(self._throttle, self._mark, self._has_failed, cancelled)

    def _has_failed(self) -> bool:
        return self.failure is not None or self.stream.failure is not None

    def fail(self, error: IsologError, /) -> None:
        self.failure = error
        self.go.set()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Write answers during the context, and the remaining ones at its end."""
        thread = Thread(target=self._run, name="isolog-answers", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._answers.put(None)
            thread.join()

    def _run(self) -> None:
        while (answer := self._answers.get()) is not None:
            if not self._is_gone:
                try:
                    self._write(answer)
                except Exception:  # the client has disconnected
                    self._is_gone = True
                    self.stream.leave()
            if self._is_full:
                self.stream.take_credit()


def target_of(descriptor: fl.FlightDescriptor) -> tuple[AppendTo, int | None]:
    """Return the target of a descriptor, and its partition if it names one.

    A descriptor has an AppendTo message as its command, or the path [topic(, partition)].
    """
    if descriptor.descriptor_type == fl.DescriptorType.PATH:
        path = [part.decode("utf-8", "replace") for part in descriptor.path]
        if not 1 <= len(path) <= 2 or not path[0]:
            raise InvalidRequest(f"a path must be [topic] or [topic, partition], not {path}")
        number = _partition_of(path[1]) if len(path) == 2 else None
        return AppendTo(topic=path[0][:255]), number
    return AppendTo.from_bytes(descriptor.command), None


def _pause(throttle: Throttle, mark: int, *is_over: Callable[[], bool]) -> None:
    """Sleep until the quota permits the bytes up to ``mark``, or any of ``is_over`` is true."""
    while (left_s := throttle.seconds_left(mark)) > 0 and not any(each() for each in is_over):
        time.sleep(min(left_s, LOOK_S))


def _partition_of(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise InvalidRequest(f"{text[:40]!r} is not a partition number")
    if len(text) > 9:
        raise UnknownPartition(f"no topic has a partition {text[:40]}")
    return int(text)


def _records(found: Bounds | IsologError) -> int:
    if isinstance(found, IsologError):
        return 0
    return int(found.log_end_offset - found.log_start_offset)


def to_flight(error: IsologError) -> fl.FlightError:
    """Convert an error to a Flight error, which any Flight client can read."""
    value = error.to_wire()
    if len(json_bytes(value)) > ERROR_BYTES_MAX:
        value["details"] = _short_ones(error.details)
        for words in ("message", "hint"):
            while len(json_bytes(value)) > ERROR_BYTES_MAX and len(value[words]) > 1:
                value[words] = _shorter(value[words])
    text = str(error)
    while len(quote(text)) > ERROR_BYTES_MAX:
        text = _shorter(text)
    return _status_of(error)(text, json_bytes(value))


def _status_of(error: IsologError) -> Any:
    """Return the Flight error class with the gRPC status of an error.

    Only Flight's own errors can have our JSON object. Flight has no errors for NOT_FOUND and
    INVALID_ARGUMENT. Python exceptions with these statuses would be sent with the broker's
    traceback and without the object.
    """
    match error:
        case Unauthenticated():
            return fl.FlightUnauthenticatedError
        case RequestTimeout():
            return fl.FlightTimedOutError
        case InternalError():
            return fl.FlightInternalError
        case _:
            return fl.FlightUnavailableError if error.retriable else fl.FlightServerError


def _shorter(text: str) -> str:
    return text[: max(0, len(text) * 3 // 4 - 1)] + _CUT


def _short_ones(details: dict[str, Any]) -> dict[str, Any]:
    """Return the short details, such as numbers and names."""
    return {
        name: value
        for name, value in details.items()
        if len(json_bytes({name: value})) <= _DETAIL_BYTES_MAX
    }

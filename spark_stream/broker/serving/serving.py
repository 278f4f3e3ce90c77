"""What a broker serves: clients at one door, and the other brokers of its cluster at another.

The methods of the protocol's streams, and what their frames hold:

=======  ===============  ========================  ===============================================
door     method           OPEN (header; body)       then
=======  ===============  ========================  ===============================================
clients  ``authenticate`` ; request                 one answer
clients  ``act``          action; request           one answer
clients  ``append``       stream's facts; schema    batches (envelope; batch), acknowledgements
clients  ``fetch``        ; request                 schema, then batches (facts; batch)
brokers  ``run-steps``    ; request                 one answer
brokers  ``replicate``    ; request                 what the leader and the follower say
=======  ===============  ========================  ===============================================

All of it runs on pools of threads: one for appends, one for fetches that were woken by records, one
for steps of the other brokers, and one for the rest. Streams of appends, fetches and followers use
a thread while they have something to do (``append_stream``, ``fetch_task``,
``broker.replication.leader_stream``). A stream ends by an answer or a typed error; an unforeseen
error is logged with its trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache, partial
from typing import Final

import pyarrow as pa
from msgspec.structs import replace

from spark_stream.access.callers import Caller, KnownBy
from spark_stream.access.rules import Need, Operation
from spark_stream.broker.access.authorizer import ConnectionIdentity, host_of, who_calls
from spark_stream.broker.access.quotas import Throttle
from spark_stream.broker.actions.context import BrokerContext
from spark_stream.broker.actions.running import run_call
from spark_stream.broker.actions.transactions import check_id_owner
from spark_stream.broker.node.identity import BrokerIdentity
from spark_stream.broker.partition.waiters import WakeUp, wake_all
from spark_stream.broker.replication.leader_stream import Leading
from spark_stream.broker.scripting.step_messages import run_steps
from spark_stream.broker.scripting.step_table import StepTable
from spark_stream.broker.serving.activity import Activity
from spark_stream.broker.serving.append_stream import AppendFrame, AppendStreams, ServedAppends
from spark_stream.broker.serving.fair_calls import FairCalls
from spark_stream.broker.serving.fetch_task import FetchTask, FetchTasks
from spark_stream.broker.serving.fetching import FetchStream
from spark_stream.broker.serving.pool import Pool
from spark_stream.broker.serving.throttling import ConnectionPlace, DelayedStart, ThrottledAppender
from spark_stream.environment import Clock
from spark_stream.errors import (
    BrokerBusy,
    BrokerStopping,
    InternalError,
    InvalidRequest,
    IsologError,
    Unauthenticated,
)
from spark_stream.loggers import logger_of
from spark_stream.protocol import Credited, Received, StreamOpened, StreamOver, data_bytes
from spark_stream.schema.schemas import received_schema
from spark_stream.transport.failures import TRANSPORT_ERRORS, error_bytes
from spark_stream.transport.loop import Loop
from spark_stream.transport.server import IncomingConnection, Serve
from spark_stream.transport.streams import BlockingStream, Stream, StreamEvent
from spark_stream.wire.access_messages import Authenticate
from spark_stream.wire.append_messages import AppendTo
from spark_stream.wire.fetch_messages import Fetch
from spark_stream.wire.messages import (
    APPEND,
    AUTHENTICATE,
    CLIENT_METHODS,
    FETCH,
    PEER_METHODS,
    REPLICATE,
)
from spark_stream.wire.replication_messages import OpenReplication

logger = logger_of(__name__)

_AUTHENTICATE_S: Final = 10.0
"""Seconds in which a connection must authenticate."""
_COMPARED_AT_ONCE: Final = 2
"""Passwords: comparing one takes 32 MiB and most of a processor."""
_WAITING_MAX: Final = 4
"""Of one host: passwords, and JWTs for which the issuer is asked. One more is refused at once."""
_FEW: Final = 4
"""How many reads an append wakes itself; if there are more, another thread wakes all."""
_WOKEN_THREADS: Final = 1
"""Threads that answer woken fetches: more would delay appends, which need the interpreter too."""


class Serving:
    """Serves the streams of one broker. ``leading``: None if it has no followers."""

    def __init__(
        self,
        here: BrokerContext,
        table: StepTable,
        me: BrokerIdentity,
        activity: Activity,
        clock: Clock,
        loop: Loop,
        peer_loop: Loop,
        memory_bytes: int,
        leading: Leading | None = None,
        boot_id: str | None = None,
    ) -> None:
        """Serve the clients on ``loop``, and the other brokers on ``peer_loop``.

        ``boot_id``: that of this machine, if readers on it may map the files.
        """
        self._here = here
        self._table = table
        self._me = me
        self._activity = activity
        self._loop, self._peer_loop = loop, peer_loop
        self._clock = clock
        self._leading = leading
        self._boot_id = boot_id
        self._refused = here.host.counts.refused
        self._pool = Pool(loop)
        self._steps_pool = Pool(peer_loop)  # elections do not wait for thousands of clients' calls
        self._password_pool = Pool(loop, _COMPARED_AT_ONCE, _COMPARED_AT_ONCE)
        self._keys_pool = Pool(loop, 1, 1)  # asks the issuer of JWTs, which may not answer
        self._waiting: Counter[tuple[str, Pool]] = Counter()  # by host; on the loop's thread
        self._append_pool = Pool(loop)  # appends do not wait for hundreds of fetches to be answered
        self._appends = AppendStreams(
            here.host, here.transactions, self._append_pool, self._wake, loop, clock, memory_bytes
        )
        self._woken_pool = Pool(loop, _WOKEN_THREADS, prior=self._append_pool)
        self._fetches = FetchTasks(
            self._pool, self._woken_pool, loop, clock, memory_bytes, refused=self._refused
        )

    def welcome_client(self, incoming: IncomingConnection) -> Serve:
        """Return what serves a connection at the clients' door, on the loop's thread."""

        authorizer = self._here.authorizer
        identity = ConnectionIdentity(
            incoming.address,
            authorizer.identify(incoming.names, incoming.address, is_local=incoming.is_local),
        )
        place = ConnectionPlace(self._here.quotas, self._loop, identity, incoming, self._refuse)
        calls = FairCalls(self._pool)
        if identity.caller is None:
            self._loop.call_later(_AUTHENTICATE_S, partial(_end_if_unknown, identity, incoming))
        else:
            incoming.trust()
            self._loop.call_soon(place.take)

        def serve(opened: StreamOpened, stream: Stream) -> None:
            place.take()
            if opened.method not in CLIENT_METHODS:
                self._refuse(stream, _not_served(opened.method))
            elif opened.method == AUTHENTICATE:
                self._authenticate(opened, stream, identity, incoming, place.take)
            elif identity.caller is None:
                authorizer.audit.note(
                    None, identity.address, opened.method, "", Unauthenticated.code
                )
                self._refuse(stream, who_calls())
            elif not place.is_taken:
                place.hold(partial(serve, opened), stream, data_bytes(opened.header, opened.body))
            elif opened.method == APPEND:
                self._append(opened, stream, identity)
            elif opened.method == FETCH:
                self._submit(partial(self._fetch, identity=identity), opened, stream, calls)
            else:
                self._submit(partial(self._act, identity=identity), opened, stream, calls)

        return serve

    def welcome_peer(self, incoming: IncomingConnection) -> Serve:
        """Return what serves a connection at the brokers' door, on the peers' loop's thread."""

        def is_broker() -> bool:
            """Trust a connection that has shown a broker's certificate."""
            brokers = self._here.host.view.now.brokers
            is_one = incoming.is_local or any(name in brokers for name in incoming.names)
            if is_one:
                incoming.trust()
            return is_one

        def refuse_strangers() -> None:
            if not is_broker():
                self._note_refusal(incoming, "connect")
                incoming.refuse("UNAUTHENTICATED", "no certificate of a broker of this cluster")

        if self._here.authorizer.requires_authentication:
            is_broker()  # its first requests may be many
            self._peer_loop.call_later(_AUTHENTICATE_S, refuse_strangers)

        def serve(opened: StreamOpened, stream: Stream) -> None:
            is_broker()
            if opened.method not in PEER_METHODS:
                self._refuse(stream, _not_served(opened.method))
            elif opened.method == REPLICATE:
                self._replicate(opened, stream, incoming)
            else:
                run = partial(self._run_steps, incoming=incoming)
                self._submit(run, opened, stream, self._steps_pool)

        return serve

    def _submit(
        self,
        act: Callable[[StreamOpened, Stream], None],
        opened: StreamOpened,
        stream: Stream,
        pool: Pool | FairCalls | None = None,
    ) -> None:
        work = partial(self._run, act, opened, stream)
        refuse = partial(self._refuse, stream, BrokerStopping("the broker is about to stop"))
        if isinstance(pool, FairCalls):
            pool.submit(work, refuse)
        elif not (pool or self._pool).submit(work):
            refuse()

    def _refuse(self, stream: Stream, error: IsologError) -> None:
        """End a stream with an error."""
        self._refused.add(error.code)
        stream.fail(error_bytes(error))

    @property
    def appends(self) -> AppendStreams:
        """What streams of appends share."""
        return self._appends

    @property
    def fetches_waiting(self) -> int:
        """How many fetches wait for records."""
        return self._fetches.waiting

    def stop(self) -> None:
        """Serve no more short requests; streams that are under way end by themselves."""
        self._append_pool.stop()
        self._woken_pool.stop()
        self._password_pool.stop()
        self._keys_pool.stop()
        self._steps_pool.stop()
        self._pool.stop()

    def _wake(self, woken: tuple[WakeUp, ...]) -> None:
        """Wake reads; many of them on another thread than that of the append."""
        if len(woken) <= _FEW or not self._woken_pool.submit(wake_all, woken):
            wake_all(woken)

    def _run(
        self, act: Callable[[StreamOpened, Stream], None], opened: StreamOpened, stream: Stream
    ) -> None:
        try:
            act(opened, stream)
        except IsologError as error:
            self._refuse(stream, error)
        except (*TRANSPORT_ERRORS, StreamOver):
            pass  # the client is gone, or gave the stream up
        except Exception as error:
            logger.exception("%s", opened.method)
            text = f"{opened.method}: {type(error).__name__}: {error}"
            self._refuse(stream, InternalError(text))

    def _authenticate(
        self,
        opened: StreamOpened,
        stream: Stream,
        identity: ConnectionIdentity,
        incoming: IncomingConnection,
        known: Callable[[], None],
    ) -> None:
        """Find out who calls; on the loop's thread, which does not wait for it."""
        try:
            asked = Authenticate.from_bytes(bytes(opened.body))
        except IsologError as error:
            self._refuse(stream, error)
            return

        def act(opened: StreamOpened, stream: Stream) -> None:
            if stream.over is not None:
                return  # its client has gone
            answer = self._here.authorizer.authenticate(identity, asked).to_bytes()
            incoming.trust()
            self._loop.call_soon(known)
            BlockingStream(stream).send(b"", answer, end=True)

        if asked.password is not None:
            pool = self._password_pool
        elif self._here.authorizer.needs_keys(asked):
            pool = self._keys_pool
        else:
            self._submit(act, opened, stream)
            return
        place, waiting = (host_of(identity.address), pool), self._waiting
        if waiting[place] >= _WAITING_MAX:
            text = f"{_WAITING_MAX} passwords or JWTs from {place[0]} wait to be checked"
            self._refuse(stream, BrokerBusy(text, hint="Try again in a moment."))
            return

        def wait(opened: StreamOpened, stream: Stream) -> None:
            try:
                if pool is self._password_pool:
                    act(opened, stream)
                else:
                    self._here.authorizer.fetch_keys(asked)
                    self._submit(act, opened, stream)
            finally:
                self._loop.call_soon(done)

        def done() -> None:
            waiting[place] -= 1
            if not waiting[place]:
                del waiting[place]

        waiting[place] += 1
        self._submit(wait, opened, stream, pool)

    def _act(self, opened: StreamOpened, stream: Stream, identity: ConnectionIdentity) -> None:
        with self._activity.call():
            name = bytes(opened.header).decode("utf-8", "replace")
            here = replace(self._here, caller=identity.known())
            answer = run_call(here, name, bytes(opened.body))
            BlockingStream(stream).send(b"", answer, end=True)

    def _run_steps(
        self, opened: StreamOpened, stream: Stream, incoming: IncomingConnection
    ) -> None:
        with self._activity.call():
            try:
                answer = run_steps(self._table, self._me, bytes(opened.body), incoming.names)
            except Unauthenticated:
                self._note_refusal(incoming, opened.method)
                raise
            BlockingStream(stream).send(b"", answer, end=True)

    def _note_refusal(self, incoming: IncomingConnection, action: str) -> None:
        """Write to the audit log that a caller at the brokers' door is none of the brokers."""
        names = incoming.names
        caller = Caller(names[0], KnownBy.CERTIFICATE) if names else None
        audit = self._here.authorizer.audit
        audit.note(caller, incoming.address, action, "", Unauthenticated.code)

    def _append(self, opened: StreamOpened, stream: Stream, identity: ConnectionIdentity) -> None:
        """Serve a stream of appends; on the loop's thread."""
        use = ExitStack()
        use.enter_context(self._activity.call())

        def asked() -> tuple[AppendTo, pa.Schema]:
            request, schema = _asked(opened)
            admitted = self._here.authorizer.admit(identity, request.needs(), appends.refuse)
            use.callback(lambda: admitted)  # it is held until the stream is over
            if request.transactional_id is not None:
                here = replace(self._here, caller=identity.known())
                check_id_owner(here, request.transactional_id)
            return request, schema

        throttle = Throttle(self._here.quotas, identity.known(), Operation.WRITE)
        appender = ThrottledAppender(stream, throttle, self._loop, self._refuse)
        appends = ServedAppends(self._appends, appender, asked, use.close)

        @cache
        def needed() -> Sequence[Need]:
            return AppendTo.from_bytes(bytes(opened.header)).needs()

        def check(*, is_open: bool) -> None:
            self._here.authorizer.check(identity.known(), needed(), is_open=is_open)

        def start() -> None:
            if not self._append_pool.submit(appends.work):
                end(BrokerStopping("the broker is about to stop"))

        def end(error: IsologError | None) -> None:
            if error is not None:
                self._refuse(stream, error)
            appends.refuse(error or InvalidRequest("the client is gone"))  # frees what it holds
            use.close()

        quotas, caller = self._here.quotas, identity.known()
        delayed = DelayedStart(quotas, caller, throttle, self._loop, stream, check, start, end)

        def handle(event: StreamEvent) -> None:
            match event:
                case Received():
                    if not delayed.hold(event.size):
                        return
                    if event.header or event.body or not event.end:
                        appends.take(AppendFrame(event.header, event.body, event.size))
                    if event.end:
                        appends.end()
                case Credited():
                    appends.take_credit()
                case _:
                    appends.leave()

        stream.handle = handle
        if opened.end:
            appends.end()
        delayed.begin(data_bytes(opened.header, opened.body))

    def _fetch(self, opened: StreamOpened, stream: Stream, identity: ConnectionIdentity) -> None:
        """Begin a fetch, which goes on when this returns."""
        request = Fetch.from_bytes(bytes(opened.body))
        admitted = self._here.authorizer.admit(
            identity, request.needs(), lambda error: self._refuse(stream, error)
        )
        use = ExitStack()
        use.callback(lambda: admitted)  # it is held until the fetch is over
        asked = FetchStream(
            self._here.host,
            request,
            lambda: stream.over is not None,
            self._clock,
            self._boot_id,
            encoded=True,
        )
        use.enter_context(self._activity.call())
        throttle = Throttle(self._here.quotas, identity.known(), Operation.READ)
        FetchTask(self._fetches, stream, asked.schema, asked.answers(), use, throttle).begin()

    def _replicate(
        self, opened: StreamOpened, stream: Stream, incoming: IncomingConnection
    ) -> None:
        """Serve a follower; its stream has no thread."""
        use = ExitStack()
        use.enter_context(self._activity.call())
        try:
            if self._leading is None:
                raise InvalidRequest("this broker has no followers")
            asked = OpenReplication.from_bytes(bytes(opened.body))
            self._leading.serve(asked, stream, use.close, incoming.names)
        except IsologError as error:
            if isinstance(error, Unauthenticated):
                self._note_refusal(incoming, opened.method)
            self._refuse(stream, error)
            use.close()


def _end_if_unknown(identity: ConnectionIdentity, incoming: IncomingConnection) -> None:
    if identity.caller is None:
        incoming.refuse("UNAUTHENTICATED", f"the caller is not known after {_AUTHENTICATE_S:g} s")


def _not_served(method: str) -> InvalidRequest:
    if method in PEER_METHODS:
        return InvalidRequest(
            f"{method} is a method for brokers only",
            hint="Brokers connect to the address of peer_listen, and clients to that of listen.",
        )
    if method in CLIENT_METHODS:
        return InvalidRequest(
            f"{method} is a method for clients, and this address is for other brokers",
            hint="Connect to the address of listen, not to that of peer_listen.",
        )
    return InvalidRequest(f"there is no method {method!r}")


def _asked(opened: StreamOpened) -> tuple[AppendTo, pa.Schema]:
    """Return what a stream of appends is for, and its schema."""
    request = AppendTo.from_bytes(bytes(opened.header))
    return request, received_schema(opened.body, "the stream's schema")

"""The service of a broker: one listener for clients, and another for the cluster's brokers.

The methods of the protocol's streams, and the contents of their frames:

========  ===============  =======================  ===============================================
listener  method           OPEN (header, body)      then
========  ===============  =======================  ===============================================
clients   ``authenticate`` empty, request           one answer
clients   ``act``          action, request          one answer
clients   ``append``       stream's facts, schema   batches (envelope, batch), acknowledgements
clients   ``fetch``        empty, request           schema, then batches (facts, batch)
brokers   ``run-steps``    empty, request           one answer
brokers   ``replicate``    empty, request           messages of the leader and of the follower
========  ===============  =======================  ===============================================

The work runs on pools of threads: one each for appends, for fetches that were woken by records, for
steps of the other brokers, for passwords, for keys of JSON Web Tokens, and for the rest. Streams of
appends, fetches and followers use a thread only while they have work (``append_stream``,
``fetch_task``, ``broker.replication.leader_stream``). A stream ends with an answer or a typed
error. An unexpected error is logged with its traceback.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Final

import pyarrow as pa
from msgspec.structs import replace

from spark_stream.access.callers import Caller, KnownBy
from spark_stream.access.rules import Need, Operation
from spark_stream.broker.access.authorizer import ConnectionIdentity, host_of, not_authenticated
from spark_stream.broker.access.quotas import Throttle
from spark_stream.broker.actions.context import BrokerContext
from spark_stream.broker.actions.running import run_call
from spark_stream.broker.actions.transactions import check_id_owner
from spark_stream.broker.node.identity import BrokerIdentity
from spark_stream.broker.partition.waiters import WakeUp, wake_all
from spark_stream.broker.replication.leader_stream import LeaderStreams
from spark_stream.broker.scripting.driver import StepTable
from spark_stream.broker.scripting.peers import run_steps
from spark_stream.broker.serving.append_stream import (
    WOKEN_HERE_MAX,
    AppendFrame,
    AppendStream,
    AppendStreams,
)
from spark_stream.broker.serving.fetch_task import FetchTask, FetchTasks
from spark_stream.broker.serving.fetching import FetchStream
from spark_stream.broker.serving.pool import Activity, FairCalls, Pool
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
from spark_stream.transport.loop import Loop
from spark_stream.transport.server import IncomingConnection, Serve
from spark_stream.transport.streams import (
    TRANSPORT_ERRORS,
    BlockingStream,
    Stream,
    StreamEvent,
    error_bytes,
)
from spark_stream.wire.access_messages import Authenticate
from spark_stream.wire.messages import (
    APPEND,
    AUTHENTICATE,
    CLIENT_METHODS,
    FETCH,
    PEER_METHODS,
    REPLICATE,
)
from spark_stream.wire.replication_messages import OpenReplication
from spark_stream.wire.stream_messages import AppendTo, Fetch

logger = logger_of(__name__)

_AUTHENTICATE_S: Final = 10.0
"""The seconds within which a connection must authenticate."""
_COMPARED_AT_ONCE: Final = 2
"""Password checks in parallel. Each takes 32 MiB and most of a processor."""
_WAITING_MAX: Final = 4
"""Pending checks of one host: passwords, and JWTs that need keys. One more is refused."""
_WOKEN_THREADS: Final = 1
"""Threads for woken fetches. More would delay appends, which also need the interpreter."""


class Serving:
    """The service of one broker. ``leading`` is None if it has no followers."""

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
        leading: LeaderStreams | None = None,
        boot_id: str | None = None,
    ) -> None:
        """Serve clients on ``loop``, and the other brokers on ``peer_loop``.

        ``boot_id`` is this machine's boot id if readers on it may map the files.
        """
        self.here = here
        self.table = table
        self.me = me
        self.activity = activity
        self.loop, self.peer_loop = loop, peer_loop
        self.clock = clock
        self.leading = leading
        self.boot_id = boot_id
        self._refused = here.host.counts.refused
        self.pool = Pool(loop)
        self.steps_pool = Pool(peer_loop)  # so that elections do not wait for the calls of clients
        self.password_pool = Pool(loop, _COMPARED_AT_ONCE, _COMPARED_AT_ONCE)
        self.keys_pool = Pool(loop, 1, 1)  # for requests to JWT issuers, which may not answer
        self.authenticating: Counter[tuple[str, Pool]] = Counter()  # of pending checks
        self.append_pool = Pool(loop)  # so that appends do not wait for fetches
        self.appends = AppendStreams(
            here.host, here.transactions, self.append_pool, self._wake, loop, clock, memory_bytes
        )
        self._woken_pool = Pool(loop, _WOKEN_THREADS, prior=self.append_pool)
        self.fetches = FetchTasks(
            self.pool, self._woken_pool, loop, clock, memory_bytes, refused=self._refused
        )

    def welcome_client(self, incoming: IncomingConnection) -> Serve:
        """Return the function that serves a client's connection on the loop's thread."""
        return ClientConnection(self, incoming).serve

    def welcome_peer(self, incoming: IncomingConnection) -> Serve:
        """Return the function that serves a broker's connection on the peers' loop's thread."""
        return PeerConnection(self, incoming).serve

    def submit(
        self, act: Serve, opened: StreamOpened, stream: Stream, pool: Pool | FairCalls
    ) -> None:
        """Call ``act(opened, stream)`` on a thread of the pool. An error ends the stream."""
        if isinstance(pool, FairCalls):
            pool.submit(self._run, self._refuse_stopped, act, opened, stream)
        elif not pool.submit(self._run, act, opened, stream):
            self._refuse_stopped(act, opened, stream)

    def _refuse_stopped(self, act: Serve, opened: StreamOpened, stream: Stream) -> None:
        self.refuse(stream, BrokerStopping("the broker is stopping"))

    def refuse(self, stream: Stream, error: IsologError) -> None:
        """End a stream with an error."""
        self._refused.add(error.code)
        stream.fail(error_bytes(error))

    @property
    def fetches_waiting(self) -> int:
        """The number of fetches that wait for records."""
        return self.fetches.waiting

    def stop(self) -> None:
        """Stop the pools. Open streams end by themselves."""
        self.append_pool.stop()
        self._woken_pool.stop()
        self.password_pool.stop()
        self.keys_pool.stop()
        self.steps_pool.stop()
        self.pool.stop()

    def _wake(self, woken: tuple[WakeUp, ...]) -> None:
        """Wake reads. If they are many, another thread than the append's wakes them."""
        if len(woken) <= WOKEN_HERE_MAX or not self._woken_pool.submit(wake_all, woken):
            wake_all(woken)

    def _run(self, act: Serve, opened: StreamOpened, stream: Stream) -> None:
        try:
            act(opened, stream)
        except IsologError as error:
            self.refuse(stream, error)
        except (*TRANSPORT_ERRORS, StreamOver):
            pass  # the client has disconnected or cancelled the stream
        except Exception as error:
            logger.exception("unexpected error in method %s", opened.method)
            text = f"{opened.method}: {type(error).__name__}: {error}"
            self.refuse(stream, InternalError(text))


class ClientConnection:
    """A client's connection, on the loop's thread."""

    def __init__(self, serving: Serving, incoming: IncomingConnection) -> None:
        here, loop = serving.here, serving.loop
        self._serving = serving
        self._incoming = incoming
        caller = here.authorizer.identify(
            incoming.names, incoming.address, is_local=incoming.is_local
        )
        self._identity = ConnectionIdentity(incoming.address, caller)
        self._place = ConnectionPlace(here.quotas, loop, self._identity, incoming, serving.refuse)
        self._calls = FairCalls(serving.pool)
        if caller is None:
            loop.call_later(_AUTHENTICATE_S, self._end_if_unknown)
        else:
            incoming.trust()
            loop.call_soon(self._place.take)

    def _end_if_unknown(self) -> None:
        if self._identity.caller is None:
            text = f"the connection was not authenticated within {_AUTHENTICATE_S:g} s"
            self._incoming.refuse("UNAUTHENTICATED", text)

    def serve(self, opened: StreamOpened, stream: Stream) -> None:
        """Serve a stream by its method."""
        serving, identity, place = self._serving, self._identity, self._place
        place.take()
        if opened.method not in CLIENT_METHODS:
            serving.refuse(stream, _not_served(opened.method))
        elif opened.method == AUTHENTICATE:
            try:
                asked = Authenticate.from_bytes(bytes(opened.body))
            except IsologError as error:
                serving.refuse(stream, error)
            else:
                Authentication(serving, identity, self._incoming, asked, place).begin(
                    opened, stream
                )
        elif identity.caller is None:
            audit = serving.here.authorizer.audit
            audit.note(None, identity.address, opened.method, "", Unauthenticated.code)
            serving.refuse(stream, not_authenticated())
        elif not place.is_taken:
            nbytes = data_bytes(opened.header, opened.body)
            place.hold(partial(self.serve, opened), stream, nbytes)
        elif opened.method == APPEND:
            ClientAppends(serving, opened, stream, identity).begin()
        elif opened.method == FETCH:
            serving.submit(self._fetch, opened, stream, self._calls)
        else:
            serving.submit(self._act, opened, stream, self._calls)

    def _act(self, opened: StreamOpened, stream: Stream) -> None:
        with self._serving.activity.call():
            name = bytes(opened.header).decode("utf-8", "replace")
            here = replace(self._serving.here, caller=self._identity.known())
            answer = run_call(here, name, bytes(opened.body))
            BlockingStream(stream).send(b"", answer, end=True)

    def _fetch(self, opened: StreamOpened, stream: Stream) -> None:
        """Start a fetch, which continues after the return."""
        serving, here = self._serving, self._serving.here
        request = Fetch.from_bytes(bytes(opened.body))
        admitted = here.authorizer.admit(
            self._identity, request.needs(), partial(serving.refuse, stream)
        )
        use = ExitStack()
        use.enter_context(nullcontext(admitted))  # held until the end of the fetch
        asked = FetchStream(
            here.host,
            request,
            lambda: stream.over is not None,
            serving.clock,
            serving.boot_id,
            encoded=True,
        )
        use.enter_context(serving.activity.call())
        throttle = Throttle(here.quotas, self._identity.known(), Operation.READ)
        FetchTask(serving.fetches, stream, asked.schema, asked.answers(), use, throttle).begin()


class Authentication:
    """A request to authenticate a connection. The loop's thread never waits for its check."""

    def __init__(
        self,
        serving: Serving,
        identity: ConnectionIdentity,
        incoming: IncomingConnection,
        asked: Authenticate,
        place: ConnectionPlace,
    ) -> None:
        self._serving = serving
        self._identity = identity
        self._incoming = incoming
        self._asked = asked
        self._place = place
        self._pool = serving.pool

    def begin(self, opened: StreamOpened, stream: Stream) -> None:
        """Answer from a pool's thread. Refuse a host with too many pending checks."""
        serving = self._serving
        if self._asked.password is not None:
            self._pool = serving.password_pool
        elif serving.here.authorizer.needs_keys(self._asked):
            self._pool = serving.keys_pool
        else:
            serving.submit(self._answer, opened, stream, serving.pool)
            return
        waiting, key = serving.authenticating, self._key
        if waiting[key] >= _WAITING_MAX:
            text = f"{_WAITING_MAX} passwords or JWTs from {key[0]} are already being checked"
            serving.refuse(stream, BrokerBusy(text, hint="Try again in a moment."))
            return
        waiting[key] += 1
        serving.submit(self._check, opened, stream, self._pool)

    @property
    def _key(self) -> tuple[str, Pool]:
        """The key of its count of pending checks: host and pool."""
        return host_of(self._identity.address), self._pool

    def _check(self, opened: StreamOpened, stream: Stream) -> None:
        serving = self._serving
        try:
            if self._asked.password is not None:
                self._answer(opened, stream)
            else:
                serving.here.authorizer.fetch_keys(self._asked)
                serving.submit(self._answer, opened, stream, serving.pool)
        finally:
            serving.loop.call_soon(self._leave)

    def _answer(self, opened: StreamOpened, stream: Stream) -> None:
        if stream.over is not None:
            return  # the client has disconnected
        answer = self._serving.here.authorizer.authenticate(self._identity, self._asked).to_bytes()
        self._incoming.trust()
        self._serving.loop.call_soon(self._place.take)
        BlockingStream(stream).send(b"", answer, end=True)

    def _leave(self) -> None:
        waiting, key = self._serving.authenticating, self._key
        waiting[key] -= 1
        if not waiting[key]:
            del waiting[key]


class ClientAppends:
    """A client's stream of appends, from the delay by its quota to its end.

    It runs on the loop's thread, except for :meth:`_open`. After its start a lingering thread may
    handle its frames.
    """

    def __init__(
        self,
        serving: Serving,
        opened: StreamOpened,
        stream: Stream,
        identity: ConnectionIdentity,
    ) -> None:
        quotas, loop, caller = serving.here.quotas, serving.loop, identity.known()
        self._serving = serving
        self._opened = opened
        self._stream = stream
        self._identity = identity
        self._needs: Sequence[Need] | None = None  # after the first check
        self._use = ExitStack()
        self._use.enter_context(serving.activity.call())
        throttle = Throttle(quotas, caller, Operation.WRITE)
        appender = ThrottledAppender(stream, throttle, loop, serving.refuse)
        self._appends = AppendStream(
            serving.appends, appender, self._open, self._use.close, channel=stream.channel
        )
        self._delayed = DelayedStart(
            quotas, caller, throttle, loop, stream, self._check, self._start, self._end
        )

    def begin(self) -> None:
        """Handle the stream's events, and start it when its quota permits."""
        self._stream.handle = self._handle
        if self._opened.end:
            self._appends.end()
        self._delayed.begin(data_bytes(self._opened.header, self._opened.body))

    def _handle(self, event: StreamEvent) -> None:
        match event:
            case Received():
                if not self._delayed.hold(event.size):
                    return
                if event.header or event.body or not event.end:
                    self._appends.take(AppendFrame(event.header, event.body, event.size))
                if event.end:
                    self._appends.end()
            case Credited():
                self._appends.take_credit()
            case _:
                self._appends.leave()

    def _check(self, *, is_open: bool) -> None:
        if self._needs is None:
            self._needs = AppendTo.from_bytes(bytes(self._opened.header)).needs()
        self._serving.here.authorizer.check(self._identity.known(), self._needs, is_open=is_open)

    def _start(self) -> None:
        self._stream.handles_anywhere = True
        if not self._serving.append_pool.submit(self._appends.work):
            self._end(BrokerStopping("the broker is stopping"))

    def _end(self, error: IsologError | None) -> None:
        if error is not None:
            self._serving.refuse(self._stream, error)
        # Also drops the frames that it has received.
        self._appends.refuse(error or InvalidRequest("the client has disconnected"))
        self._use.close()

    def _open(self) -> tuple[AppendTo, pa.Schema]:
        """Return the stream's request and its schema, on a thread of the pool."""
        here = self._serving.here
        request = AppendTo.from_bytes(bytes(self._opened.header))
        schema = received_schema(self._opened.body, "the stream's schema")
        admitted = here.authorizer.admit(self._identity, request.needs(), self._appends.refuse)
        self._use.enter_context(nullcontext(admitted))  # held until the end of the stream
        if request.transactional_id is not None:
            check_id_owner(replace(here, caller=self._identity.known()), request.transactional_id)
        return request, schema


class PeerConnection:
    """A broker's connection, on the peers' loop's thread."""

    def __init__(self, serving: Serving, incoming: IncomingConnection) -> None:
        self._serving = serving
        self._incoming = incoming
        if serving.here.authorizer.requires_authentication:
            self._trust_broker()  # so that its first requests may use the full limits
            serving.peer_loop.call_later(_AUTHENTICATE_S, self._end_if_stranger)

    def serve(self, opened: StreamOpened, stream: Stream) -> None:
        """Serve a stream by its method."""
        self._trust_broker()
        if opened.method not in PEER_METHODS:
            self._serving.refuse(stream, _not_served(opened.method))
        elif opened.method == REPLICATE:
            self._replicate(opened, stream)
        else:
            self._serving.submit(self._run_steps, opened, stream, self._serving.steps_pool)

    def _trust_broker(self) -> bool:
        """Trust the connection if it has a broker's certificate. Return whether it has."""
        incoming, brokers = self._incoming, self._serving.here.host.view.now.brokers
        is_one = incoming.is_local or any(name in brokers for name in incoming.names)
        if is_one:
            incoming.trust()
        return is_one

    def _end_if_stranger(self) -> None:
        if not self._trust_broker():
            self._note_refusal("connect")
            self._incoming.refuse("UNAUTHENTICATED", "no certificate of a broker of this cluster")

    def _run_steps(self, opened: StreamOpened, stream: Stream) -> None:
        serving, names = self._serving, self._incoming.names
        with serving.activity.call():
            try:
                answer = run_steps(serving.table, serving.me, bytes(opened.body), names)
            except Unauthenticated:
                self._note_refusal(opened.method)
                raise
            BlockingStream(stream).send(b"", answer, end=True)

    def _replicate(self, opened: StreamOpened, stream: Stream) -> None:
        """Serve a follower's stream, which has no thread."""
        leading = self._serving.leading
        use = ExitStack()
        use.enter_context(self._serving.activity.call())
        try:
            if leading is None:
                raise InvalidRequest("this broker has no followers")
            asked = OpenReplication.from_bytes(bytes(opened.body))
            leading.serve(asked, stream, use.close, self._incoming.names)
        except IsologError as error:
            if isinstance(error, Unauthenticated):
                self._note_refusal(opened.method)
            self._serving.refuse(stream, error)
            use.close()

    def _note_refusal(self, action: str) -> None:
        """Write a refused caller to the audit log."""
        names = self._incoming.names
        caller = Caller(names[0], KnownBy.CERTIFICATE) if names else None
        audit = self._serving.here.authorizer.audit
        audit.note(caller, self._incoming.address, action, "", Unauthenticated.code)


def _not_served(method: str) -> InvalidRequest:
    if method in PEER_METHODS:
        return InvalidRequest(
            f"the method {method} is for brokers only",
            hint="Brokers connect to the address of peer_listen, and clients to that of listen.",
        )
    if method in CLIENT_METHODS:
        return InvalidRequest(
            f"the method {method} is for clients, and this address is for brokers",
            hint="Connect to the address of listen, not to that of peer_listen.",
        )
    return InvalidRequest(f"there is no method {method!r}")

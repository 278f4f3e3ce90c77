"""The gateway's process: it accepts connections of Kafka clients, each with a thread.

A request is answered before the next one of its connection is read, so the answers have the order
of the requests. The end of the gateway loses no acknowledged record, because an acknowledgement is
sent after that of the broker.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from spark_stream.errors import IsologError
from spark_stream.kafka.calls import Answer, KafkaCall
from spark_stream.kafka.connection import (
    FRAME_MAX,
    KafkaConnection,
    KafkaRequest,
    answer,
    has_error,
    refuse,
)
from spark_stream.kafka.counts import GatewayCounts
from spark_stream.kafka.handlers import HANDLERS
from spark_stream.kafka.logins import MECHANISMS, ClusterUser, ClusterUsers
from spark_stream.kafka.memory.budget import MemoryBudget
from spark_stream.kafka.memory.members import Members
from spark_stream.kafka.memory.transactions import Transactions
from spark_stream.kafka.metadata import api_versions
from spark_stream.kafka.peers import Gateways
from spark_stream.kafka.reading import FetchSession
from spark_stream.kafka.refusals import (
    KafkaCode,
    LoginEnded,
    OutOfSequence,
    Refusal,
    UnansweredFailure,
    code_of,
    error_fields,
)
from spark_stream.loggers import logger_of
from spark_stream.operating_system import DONT_WAIT
from spark_stream.transport.tls import RotatingContext, TlsFiles, server_context

logger = logger_of(__name__)

CONNECTIONS_MAX: Final = 1_000

BRIEF_MAX: Final = 16
"""The most connections beyond ``CONNECTIONS_MAX``, each for the probe of another gateway."""

FRAMES_MAX: Final = 512 << 20
"""The most bytes of all large requests together."""

ANSWERS_MAX: Final = 512 << 20
"""The most bytes of all records that slow clients have not received yet.

With less room left, a fetch gets ``ANSWER_BYTES_MIN``.
"""

LARGE: Final = 1 << 20
"""The size in bytes from which a request counts as large."""

SILENCE_S: Final = 30.0
"""The longest pause within a large request."""

LARGE_BYTES_PER_S: Final = 1 << 20
"""The least rate of a large request. Slower ones would keep the memory from other clients."""

IDLE_S: Final = 600.0
"""The longest time without a request. Kafka's default of ``connections.max.idle.ms``."""

LOGIN_S: Final = 10.0
"""The time in which a client has to log in, from its connection on."""

LOGIN_BYTES_MAX: Final = 512 << 10
"""The most bytes of a request before the login. Kafka's ``sasl.server.max.receive.size``."""

_RECEIVE_BYTES: Final = 256 << 10
_TIMEVAL: Final = struct.Struct("@ll")
_WAIT_US_MIN: Final = 1_000
"""The shortest wait. Zero would be a wait without end."""
_END_S: Final = 5.0
_JOINED_MAX: Final = 64 << 10
_PAUSE_AFTER_FAILURE_S: Final = 0.5


def tls_context(cert: Path, key: Path | None) -> RotatingContext:
    """Return the TLS settings with a certificate, whose files are read again when they change.

    Raises:
        InvalidOption: A file cannot be used.
    """
    files = TlsFiles(str(cert), None if key is None else str(key))
    return RotatingContext(files.paths, lambda: server_context(files))


class ClientSocket:
    """A connected socket, with a limit for each wait.

    One without TLS waits in its system call. With a timeout of Python, each call would be three.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._waits_itself = DONT_WAIT is not None and not isinstance(sock, ssl.SSLSocket)
        self._limit_s: float | None = None  # of the last wait
        if self._waits_itself:
            sock.settimeout(None)

    def receive(self, limit_s: float) -> bytes:
        """Return received bytes, b"" at the end of the connection.

        Raises:
            TimeoutError: The client has sent no byte for ``limit_s`` seconds.
        """
        if limit_s != self._limit_s:
            self._limit_s = limit_s
            if self._waits_itself:
                micros = max(_WAIT_US_MIN, int(limit_s * 1e6))
                packed = _TIMEVAL.pack(*divmod(micros, 1_000_000))
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, packed)
            else:
                self._sock.settimeout(limit_s)
        try:
            return self._sock.recv(_RECEIVE_BYTES)
        except (BlockingIOError, TimeoutError):
            raise TimeoutError(f"it has sent no byte for {limit_s:g} s") from None

    def send(self, data: bytes) -> None:
        """Send bytes. The client has to receive them within the limit of the last wait."""
        sent = self._send_at_once(data)
        if sent < len(data):
            self._sock.settimeout(self._limit_s or LOGIN_S)
            self._sock.sendall(memoryview(data)[sent:])
            self._sock.settimeout(None if self._waits_itself else self._limit_s)

    def _send_at_once(self, data: bytes) -> int:
        """Send the bytes that fit into the socket, without a wait. Return their number."""
        if DONT_WAIT is None or not self._waits_itself:
            return 0
        try:
            return self._sock.send(data, DONT_WAIT)
        except BlockingIOError:
            return 0


class KafkaClient:
    """One client: its user, once it has logged in, and its readers.

    ``mechanism``: that of its present login. ``is_refused``: its connection ends after the answer.
    """

    def __init__(self, users: ClusterUsers, counts: GatewayCounts, answers: MemoryBudget) -> None:
        self._users = users
        self._counts = counts
        self._answers = answers
        self.mechanism: str | None = None
        self.is_refused = False
        self.user: ClusterUser | None = None
        self.reads: FetchSession | None = None

    def act_as(self, user: ClusterUser) -> None:
        """Act as a user of the cluster. The readers of the connection before it end."""
        self.close()
        self.user, self.reads = user, FetchSession(user.log, self._counts.fetched, self._answers)

    def close(self) -> None:
        """Stop all readers, and leave the connection to the brokers."""
        if self.reads is not None:
            self.reads.close()
        if self.user is not None:
            self._users.release(self.user)
        self.user = self.reads = None


class KafkaGateway:
    """A gateway. It serves until :meth:`close`. ``counts``: the counts since its start.

    Args:
        users: The connections to the brokers.
        listener: The socket to listen on. The caller closes it.
        gateways: The addresses of this gateway and of the others. The gateway closes it.
        tls: The TLS settings of connections. None for connections without TLS.
    """

    def __init__(
        self,
        users: ClusterUsers,
        listener: socket.socket,
        gateways: Gateways,
        tls: RotatingContext | None = None,
    ) -> None:
        self.counts = GatewayCounts()
        self._users = users
        self._tls = tls
        self._frames, self._answers = MemoryBudget(FRAMES_MAX), MemoryBudget(ANSWERS_MAX)
        self._listener = listener
        listener.listen(CONNECTIONS_MAX)
        self._gateways = gateways
        self._members = Members()
        self._transactions = Transactions()
        self._connections: dict[threading.Thread, socket.socket] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._acceptor = threading.Thread(
            target=self._accept, name="isolog-kafka-accept", daemon=True
        )
        self._acceptor.start()

    def close(self) -> None:
        """Close all connections, after the appends that were received."""
        self._is_closed = True
        self._gateways.close()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join(_END_S)
        with self._lock:
            open_now = dict(self._connections)
        for each in open_now.values():
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + _END_S
        for thread in open_now:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._users.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                if self._is_closed:
                    return
                time.sleep(0.1)  # such as without a free descriptor
                continue
            with self._lock:
                present = len(self._connections)
                thread = threading.Thread(
                    target=self._serve,
                    args=(sock, present >= CONNECTIONS_MAX),
                    name="isolog-kafka",
                    daemon=True,
                )
                is_full = present >= CONNECTIONS_MAX + BRIEF_MAX
                if not is_full:
                    self._connections[thread] = sock
                    self.counts.accepted += 1
                    self.counts.connections = len(self._connections)
            if present >= CONNECTIONS_MAX:
                logger.warning(
                    "refusing a Kafka client: the gateway already has %d connections, its maximum",
                    CONNECTIONS_MAX,
                )
            if is_full:
                sock.close()
                continue
            try:
                thread.start()
            except RuntimeError as error:  # such as without a free thread
                logger.warning("a Kafka client was refused: %s", error)
                self._drop(thread)
                sock.close()

    def _drop(self, thread: threading.Thread) -> None:
        with self._lock:
            self._connections.pop(thread, None)
            self.counts.connections = len(self._connections)

    def _serve(self, sock: socket.socket, is_brief: bool) -> None:
        client = KafkaClient(self._users, self.counts, self._answers)
        held, large_by = 0, 0.0
        login_by = time.monotonic() + LOGIN_S
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                self._tls.refresh()
                sock.settimeout(LOGIN_S)
                sock = self._tls.current().wrap_socket(sock, server_side=True)
                with self._lock:
                    self._connections[threading.current_thread()] = sock
            if not (self._users.needs_login or is_brief):
                client.act_as(self._users.nobody())
            connection, patient = KafkaConnection(), ClientSocket(sock)
            if client.user is None:
                connection.size_max = LOGIN_BYTES_MAX
            while True:
                limit_s = _patience_s(client, login_by, large_by if held else None)
                data = patient.receive(limit_s)
                if not data:
                    return
                self.counts.received.add(0, 0, len(data))
                for request in connection.receive(data):
                    if is_brief and request.api != "ApiVersions":
                        return
                    with self.counts.of(request.api).seconds.time():
                        parts = self._answer(request, client)
                    self._send(patient, parts)
                    del parts  # its memory counts as free from here on
                    if client.reads is not None:
                        client.reads.on_sent()
                    if client.is_refused or is_brief:
                        return
                    if client.user is not None:
                        connection.size_max = FRAME_MAX
                    # After the first version of a handshake the token has no header.
                    is_first = request.api == "SaslHandshake" and request.version == 0
                    connection.expects_token = is_first and client.mechanism is not None
                before, held = held, self._held(held, connection.incomplete)
                if held != before:
                    large_by = time.monotonic() + SILENCE_S + held / LARGE_BYTES_PER_S
        except (Refusal, LoginEnded) as error:
            logger.warning("a Kafka client was disconnected: %s", error)
        except OSError as error:
            logger.debug("the connection of a Kafka client ended: %s", error)
        except Exception:
            logger.exception("the connection of a Kafka client failed")
        finally:
            self._held(held, 0)
            client.close()
            self._drop(threading.current_thread())
            sock.close()

    def _send(self, client: ClientSocket, parts: list[bytes]) -> None:
        for part in _packets(parts):
            self.counts.sent.add(0, 0, len(part))
            client.send(part)

    def _held(self, held: int, incomplete: int) -> int:
        """Reserve room for a request that began, and free that of the one before it."""
        needed = incomplete if incomplete >= LARGE else 0
        if needed == held:
            return held
        if held:
            self._frames.give_back(held)
        if needed:
            self._frames.take(needed)
        return needed

    def _answer(self, request: KafkaRequest, client: KafkaClient) -> list[bytes]:
        if request.api == "ApiVersions":
            return self._answered(request, api_versions(request))
        if request.unsupported is not None:
            client.is_refused = not has_error(request)
            return [] if client.is_refused else self._refused(request, request.unsupported)
        if request.api == "SaslHandshake":
            return self._answered(request, self._handshake(request, client))
        if request.api == "SaslAuthenticate":
            return self._answered(request, self._log_in(request, client))
        if client.user is None or client.reads is None:
            client.is_refused = True
            return self._refused(request, KafkaCode.ILLEGAL_SASL_STATE)
        if client.user.seconds_left == 0:
            raise LoginEnded("its token has expired")
        call = KafkaCall(
            client.user,
            client.reads,
            self._gateways,
            self._members,
            self._transactions,
            self.counts,
            request,
        )
        try:
            found = HANDLERS[request.api](call)
        except UnansweredFailure as error:
            logger.info("an unacknowledged request of a Kafka client failed: %s", error)
            client.is_refused = True  # the end of its connection is the only answer that it gets
            return []
        except (IsologError, Refusal) as error:
            logger.info("a %s request of a Kafka client failed: %s", request.api, error)
            # An answer without an error code would count as success.
            client.is_refused = not has_error(request)
            return [] if client.is_refused else self._refused(request, code_of(error))
        return [] if found is None else self._answered(request, found)

    def _answered(self, request: KafkaRequest, fields: Answer) -> list[bytes]:
        self.counts.of(request.api).note_errors(fields)
        return answer(request, fields)

    def _refused(self, request: KafkaRequest, code: KafkaCode) -> list[bytes]:
        self.counts.of(request.api).errors.add(code.name)
        return refuse(request, code)

    def _handshake(self, request: KafkaRequest, client: KafkaClient) -> dict[str, Any]:
        if not self._users.needs_login:
            return {"error_code": int(KafkaCode.ILLEGAL_SASL_STATE)}
        name = request.fields["mechanism"]
        client.mechanism = name if name in MECHANISMS else None
        code = KafkaCode.NONE if client.mechanism else KafkaCode.UNSUPPORTED_SASL_MECHANISM
        return {"error_code": int(code), "mechanisms": list(MECHANISMS)}

    def _log_in(self, request: KafkaRequest, client: KafkaClient) -> dict[str, Any]:
        mechanism, client.mechanism = client.mechanism, None
        try:
            if mechanism is None:
                raise OutOfSequence("a login begins with SaslHandshake, at a gateway with --sasl")
            before = None if client.user is None else client.user.principal
            user = self._users.log_in(mechanism, request.fields["auth_bytes"], before)
            client.act_as(user)
        except (IsologError, Refusal) as error:
            client.is_refused = True
            logger.info("the login of a Kafka client failed: %s", error)
            time.sleep(_PAUSE_AFTER_FAILURE_S)  # slows down guessing
            return error_fields(error)
        left_s = user.seconds_left
        return {"session_lifetime_ms": 0 if left_s is None else max(1, int(left_s * 1_000))}


def _packets(parts: list[bytes]) -> list[bytes]:
    """Join the parts of a small answer, so that its client wakes up once."""
    if not parts or sum(map(len, parts)) > _JOINED_MAX:
        return parts
    return [b"".join(parts)]


def _patience_s(client: KafkaClient, login_by: float, large_by: float | None) -> float:
    """Return the longest wait for the next bytes of a client.

    ``large_by``: the end of the time for the large request of which a part has arrived, or None.

    Raises:
        TimeoutError: The client has not logged in in time, or its request is too slow.
    """
    now = time.monotonic()
    if client.user is None:
        if now >= login_by:
            raise TimeoutError(f"it has not logged in within {LOGIN_S:g} s")
        return login_by - now
    if large_by is None:
        return IDLE_S
    if now >= large_by:
        raise TimeoutError("its large request arrives too slowly")
    return min(SILENCE_S, large_by - now)

"""The gateway's process: it accepts connections of Kafka clients, each with a thread.

A request is answered before the next one of its connection is read, so the answers have the order
of the requests. The brokers see one client, the gateway. Its end loses no acknowledged record: an
acknowledgement is sent after that of the broker.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from spark_stream.client.log import Log
from spark_stream.errors import IsologError
from spark_stream.kafka.connection import KafkaConnection, KafkaRequest, answer, refuse
from spark_stream.kafka.metadata import GatewayAddress, api_versions, metadata
from spark_stream.kafka.reading import FetchSession, list_offsets
from spark_stream.kafka.refusals import KafkaCode, Refusal, code_of
from spark_stream.kafka.writing import Producers, init_producer_id, produce
from spark_stream.loggers import logger_of

logger = logger_of(__name__)

CONNECTIONS_MAX: Final = 1_000
FRAMES_MAX: Final = 512 << 20
"""The most bytes of all large requests together."""

LARGE: Final = 1 << 20
"""The size in bytes from which a request counts as large."""

SILENCE_S: Final = 30.0
"""The longest pause within a large request."""

_RECEIVE_BYTES: Final = 256 << 10
_WAIT_MS_MAX: Final = 60_000
_END_S: Final = 5.0
_NO_ACKS: Final = 0


class FrameBudget:
    """The memory for large requests. A connection waits until there is room for the next one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._changed = threading.Condition()

    def take(self, size: int) -> None:
        """Reserve room, or wait for it. A request above the limit gets it alone."""
        with self._changed:
            self._changed.wait_for(lambda: not self._used or self._used + size <= self._limit)
            self._used += size

    def give_back(self, size: int) -> None:
        """Free the room."""
        with self._changed:
            self._used -= size
            self._changed.notify_all()


class KafkaGateway:
    """A gateway. It serves until :meth:`close`.

    Args:
        log: The connection to the brokers.
        listener: The socket to listen on. The caller closes it.
        advertised: The address of the gateway in its answers.
    """

    def __init__(self, log: Log, listener: socket.socket, advertised: GatewayAddress) -> None:
        self._log = log
        self._cluster_id = log.status().cluster_id
        self._producers = Producers(log)
        self._budget = FrameBudget(FRAMES_MAX)
        self._listener = listener
        listener.listen(CONNECTIONS_MAX)
        self._address = advertised
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        self._acceptor = threading.Thread(
            target=self._accept, name="isolog-kafka-accept", daemon=True
        )
        self._acceptor.start()

    def close(self) -> None:
        """Close all connections, after the appends that were received."""
        self._is_closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        with self._lock:
            open_now = list(self._connections)
        for each in open_now:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._acceptor.join(_END_S)
        self._producers.close()

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
                is_full = len(self._connections) >= CONNECTIONS_MAX
                if not is_full:
                    self._connections.add(sock)
            if is_full:
                logger.warning("a Kafka client was refused: %d are connected", CONNECTIONS_MAX)
                sock.close()
                continue
            threading.Thread(
                target=self._serve, args=(sock,), name="isolog-kafka", daemon=True
            ).start()

    def _serve(self, sock: socket.socket) -> None:
        session = FetchSession(self._log)
        held = 0
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = KafkaConnection()
            while data := sock.recv(_RECEIVE_BYTES):
                for request in connection.receive(data):
                    for part in self._answer(request, session):
                        sock.sendall(part)
                held = self._held(held, connection.incomplete)
                sock.settimeout(SILENCE_S if held else None)
        except Refusal as error:
            logger.warning("a Kafka client was disconnected: %s", error)
        except OSError as error:
            logger.debug("the connection of a Kafka client ended: %s", error)
        except Exception:
            logger.exception("the connection of a Kafka client failed")
        finally:
            self._held(held, 0)
            session.close()
            with self._lock:
                self._connections.discard(sock)
            sock.close()

    def _held(self, held: int, incomplete: int) -> int:
        """Reserve room for a request that began, and free that of the one before it."""
        needed = incomplete if incomplete >= LARGE else 0
        if needed == held:
            return held
        if held:
            self._budget.give_back(held)
        if needed:
            self._budget.take(needed)
        return needed

    def _answer(self, request: KafkaRequest, session: FetchSession) -> list[bytes]:
        if request.api == "ApiVersions":
            return answer(request, api_versions(request))
        if request.unsupported is not None:
            return refuse(request, request.unsupported)
        try:
            found = self._handlers[request.api](self, request, session)
        except (IsologError, Refusal) as error:
            logger.debug("a %s request of a Kafka client failed: %s", request.api, error)
            return refuse(request, code_of(error))
        return [] if found is None else answer(request, found)

    def _metadata(self, request: KafkaRequest, session: FetchSession) -> dict[str, Any]:
        return metadata(self._log, self._cluster_id, self._address, request)

    def _list_offsets(self, request: KafkaRequest, session: FetchSession) -> dict[str, Any]:
        return list_offsets(self._log, request.fields)

    def _fetch(self, request: KafkaRequest, session: FetchSession) -> dict[str, Any]:
        wait_ms = min(max(request.fields["max_wait_ms"], 0), _WAIT_MS_MAX)
        if request.fields["session_id"]:
            # Sessions are optional. A client continues without one after this code.
            return {"error_code": int(KafkaCode.FETCH_SESSION_ID_NOT_FOUND)}
        return session.fetch(request.fields, time.monotonic() + wait_ms / 1_000)

    def _init_producer_id(self, request: KafkaRequest, session: FetchSession) -> dict[str, Any]:
        return init_producer_id(self._log, request.fields)

    def _produce(self, request: KafkaRequest, session: FetchSession) -> dict[str, Any] | None:
        found = produce(self._log, self._producers, request.fields)
        return None if request.fields["acks"] == _NO_ACKS else found

    _handlers: Final[
        dict[str, Callable[[KafkaGateway, KafkaRequest, FetchSession], dict[str, Any] | None]]
    ] = {
        "Metadata": _metadata,
        "ListOffsets": _list_offsets,
        "Fetch": _fetch,
        "Produce": _produce,
        "InitProducerId": _init_producer_id,
    }

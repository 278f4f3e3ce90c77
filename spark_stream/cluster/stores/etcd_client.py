"""A client of etcd: its JSON gateway over ``http.client``, a few calls, any of several members.

**Failures.** The outcome of a call that fails with MetadataUnavailable is unknown: it may also
commit later. Reads are retried at the next member. For writes the caller has to find out
(``stores.etcd``). Members are tried in turn, beginning with the one that answered last.

**Members that are behind.** Reads are linearizable, so a member without its leader fails instead of
showing its past. An answer of another cluster, or of an earlier raft term than one seen before, is
refused: such a member was cut off, or was restored from a backup. An answer with a lower revision
is METADATA_LOST (``etcd_history``). A watch requires its member to end it when the member loses its
leader (``hasleader``): otherwise it would hang forever (etcd#10819).
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from spark_stream.cluster.stores.etcd_history import EtcdHistory, fallen
from spark_stream.errors import (
    InvalidConfig,
    MetadataLost,
    MetadataRefused,
    MetadataUnavailable,
    StorageFailure,
)
from spark_stream.loggers import logger_of
from spark_stream.operating_system import keepalive

logger = logger_of(__name__)

Json = dict[str, Any]

RANGE: Final = "/v3/kv/range"
TXN: Final = "/v3/kv/txn"
_LINEARIZABLE: Final = "/v3/kv/"  # the start of the paths of reads and changes
_REFUSING: Final = frozenset({3, 5, 6, 7, 9, 11, 12})
"""gRPC's codes for requests without an effect. After any other, the outcome is unknown, and another
member, or the same one later, may answer."""
_FORBIDDEN: Final = 7
_UNAUTHENTICATED: Final = 16
_CREDENTIAL_HINT: Final = (
    "Set metadata_user and metadata_password to a user of etcd that may read and write keys with"
    " the cluster's name."
)
_NO_SPACE: Final = "database space exceeded"
_NO_SPACE_HINT: Final = (
    "etcd has used up its quota. Compact and defragment it or raise --quota-backend-bytes, then run"
    " `etcdctl alarm disarm`."
)
_KEPT_ALIVE: Final = keepalive(idle_s=2, interval_s=1, count=3)
_PAUSE_S: Final = 0.02
_ATTEMPTS: Final = 3
_PATIENCE: Final = 3  # times the timeout
_WATCH_PAUSE_S: Final = 0.1
_LOST_PAUSE_S: Final = 1.0
_LOG_PAUSE_S: Final = 10.0  # between two log lines of the same trouble
_WATCHES: Final = 3  # how many members are tried before a wait for a revision fails
_TRY_S: Final = 0.2  # between two attempts while nobody answers


def encoded(key: bytes) -> str:
    """Encode a key or a value as the gateway takes it."""
    return b64encode(key).decode()


def decoded(text: str | None) -> bytes:
    """Decode a key or a value. The gateway leaves out empty ones."""
    return b64decode(text or "")


def decoded_value(found: Mapping[str, Any]) -> str:
    """Return the value of a key as text. "" if there is no such key."""
    return decoded(found.get("value")).decode(errors="replace")


def is_at(key: str, version: int) -> Json:
    """Return a comparison of a transaction that holds if an encoded key has this version.

    Version 0: there is no such key.
    """
    return {"key": key, "target": "MOD", "mod_revision": str(version)}


class EtcdClient:
    """Calls of a cluster of etcd members, from any thread.

    ``timeout_s``: for one attempt at one member. Reads are attempted for three times that. After a
    failed read etcd counts as away: one read at a time tries one member, and all others fail at
    once, until a call succeeds. So threads do not pile up.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        timeout_s: float,
        tls: Callable[[], ssl.SSLContext] | None = None,
        credential: tuple[str, str] | None = None,
        history: EtcdHistory | None = None,
    ) -> None:
        """``endpoints``: each ``host:port``. ``tls`` returns the context of a new connection.

        ``credential``: a user and a password. ``history``: shared by the clients of one broker.
        """
        if not endpoints:
            raise InvalidConfig("etcd: no endpoint", setting="metadata")
        self.timeout_s = timeout_s
        self.history = history or EtcdHistory()
        self._endpoints = list(endpoints)
        self._tls = tls
        self._credential = credential
        self._lock = threading.Lock()  # guards what follows
        self._idle: list[tuple[str, http.client.HTTPConnection]] = []
        self._token: str | None = None
        self._closed = False
        self._away = _Away()

    def read(self, path: str, asked: Mapping[str, Any]) -> Json:
        """Send a read to the members in turn until one answers.

        Raises:
            MetadataUnavailable: no member has answered in time.
            MetadataRefused: the request is refused.
        """
        is_away = self._away.take_turn(self.timeout_s)
        until = time.monotonic() + (0.0 if is_away else _PATIENCE * self.timeout_s)
        while True:
            try:
                return self.write(path, asked)
            except MetadataUnavailable as error:
                if self._closed or time.monotonic() >= until:
                    self._away.failed(error)
                    raise
                time.sleep(_PAUSE_S)

    def check_present(self) -> None:
        """Check that members have answered lately.

        Raises:
            MetadataUnavailable: No member has, so a change is not worth a try.
        """
        self._away.take_turn(self.timeout_s)

    def write(self, path: str, asked: Mapping[str, Any]) -> Json:
        """Send a request to one member, without a retry.

        Raises:
            MetadataUnavailable: The member has not answered, so the outcome is unknown.
            MetadataRefused: The member refused the request.
            MetadataLost: Etcd has lost changes.
        """
        before = self.history.check()
        endpoint, found = self.probe(path, asked)
        self.check_header(
            endpoint, found.get("header", {}), before if path.startswith(_LINEARIZABLE) else 0
        )
        self._away.answered()
        return found

    def probe(self, path: str, asked: Mapping[str, Any]) -> tuple[str, Json]:
        """Send a request to one member, in any state. Return its endpoint and the answer.

        Raises:
            MetadataUnavailable: The member has not answered.
            MetadataRefused: The request is refused.
        """
        body = json.dumps(asked).encode()
        endpoint, connection = self._take()
        try:
            connection.request("POST", path, body, self._headers())
            answer = connection.getresponse()
            data = answer.read()
            found = self._checked(endpoint, answer.status, data)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self.turn_from(endpoint)
            raise _unavailable(endpoint, error) from None
        except BaseException:
            connection.close()
            raise
        self._give_back(endpoint, connection)
        return endpoint, found

    def write_again(self, path: str, asked: Mapping[str, Any]) -> Json:
        """Send an idempotent change to up to three members.

        Raises: as :meth:`write`.
        """
        for _ in range(_ATTEMPTS - 1):
            with suppress(MetadataUnavailable):  # another member may answer, and in time
                return self.write(path, asked)
        return self.write(path, asked)

    def watch(self, start: bytes, end: bytes, since: int) -> EtcdWatch:
        """Return a watch of the keys in ``[start, end)``, of all changes after a revision.

        Raises:
            MetadataUnavailable: The member does not answer.
            MetadataLost: Etcd has lost changes.
        """
        self.history.check()
        asked = {
            "create_request": {
                "key": encoded(start),
                "range_end": encoded(end),
                "start_revision": str(since + 1),
                "progress_notify": True,
            }
        }
        endpoint, connection = self._connect()
        try:
            headers = self._headers() | {"Grpc-Metadata-hasleader": "true"}
            connection.request("POST", "/v3/watch", json.dumps(asked).encode(), headers)
            sock: socket.socket = connection.sock
            for level, option, value in _KEPT_ALIVE:
                sock.setsockopt(level, option, value)
            answer = connection.getresponse()
            sock.settimeout(None)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self.turn_from(endpoint)
            raise _unavailable(endpoint, error) from None
        return EtcdWatch(self, endpoint, sock, answer)

    @property
    def members(self) -> int:
        """The number of endpoints."""
        return len(self._endpoints)

    def close(self) -> None:
        """Close the connections. Later calls fail."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    # -- connections ------------------------------------------------------------------------------

    def _take(self) -> tuple[str, http.client.HTTPConnection]:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def _connect(self) -> tuple[str, http.client.HTTPConnection]:
        with self._lock:
            if self._closed:
                raise MetadataUnavailable("the metadata store is closed")
            endpoint = self._endpoints[0]
        host, _, port = endpoint.rpartition(":")
        host = host.strip("[]")
        if self._tls is None:
            return endpoint, http.client.HTTPConnection(host, int(port), timeout=self.timeout_s)
        return endpoint, http.client.HTTPSConnection(
            host, int(port), timeout=self.timeout_s, context=self._tls()
        )

    def _give_back(self, endpoint: str, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed and endpoint == self._endpoints[0]:
                self._idle.append((endpoint, connection))
                return
        connection.close()

    def turn_from(self, endpoint: str) -> None:
        """Use another member for the next calls."""
        with self._lock:
            if self._endpoints[0] == endpoint:
                self._endpoints.append(self._endpoints.pop(0))
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    # -- answers ----------------------------------------------------------------------------------

    def _headers(self) -> dict[str, str]:
        if self._credential is None:
            return {}
        token = self._token
        if token is None:
            user, password = self._credential
            endpoint, connection = self._connect()
            try:
                asked = json.dumps({"name": user, "password": password}).encode()
                connection.request("POST", "/v3/auth/authenticate", asked)
                answer = connection.getresponse()
                found = self._checked(endpoint, answer.status, answer.read())
                token = self._token = str(found["token"])
            finally:
                connection.close()
        return {"Authorization": token}

    def forget_token(self) -> None:
        """Authenticate again for the next call."""
        self._token = None

    def _checked(self, endpoint: str, status: int, data: bytes) -> Json:
        try:
            found: Json = json.loads(data)
        except ValueError:
            self.turn_from(endpoint)
            raise MetadataUnavailable(f"etcd at {endpoint}: status {status} without JSON") from None
        if status == http.client.OK:
            return found
        # Up to etcd 3.5 `error` has the text too. From 3.6 on there is `message` only.
        code = int(found.get("code", 2))
        text = str(found.get("message") or found.get("error") or status)
        if code == _UNAUTHENTICATED or "auth store is old" in text or "auth token" in text:
            self._token = None
            raise MetadataUnavailable(f"etcd at {endpoint}: {text}")
        if _NO_SPACE in text:  # an alarm is the same at all members, which then refuse changes
            raise MetadataUnavailable(
                f"etcd at {endpoint}: {text}", hint=_NO_SPACE_HINT, takes_no_changes=True
            )
        if code not in _REFUSING and "larger than max" not in text:
            self.turn_from(endpoint)
            raise MetadataUnavailable(f"etcd at {endpoint}: {text}")
        hint = _CREDENTIAL_HINT if code == _FORBIDDEN or "user" in text else None
        raise MetadataRefused(f"etcd at {endpoint}: {text}", hint=hint)

    def check_header(self, endpoint: str, header: Mapping[str, str], before: int = 0) -> None:
        """Check that an answer is not of another cluster, or of an earlier time.

        ``before``: for a linearizable answer, the revision that was known before its request.

        Raises:
            MetadataUnavailable: The answer is of another cluster or an earlier term. Another member
                may give the right answer.
            MetadataLost: The answer's revision is below ``before``.
        """
        history = self.history
        cluster, term = header.get("cluster_id", ""), int(header.get("raft_term", 0))
        revision, known = int(header.get("revision", 0)), history.known.cluster or cluster
        if cluster == known and revision < before:
            raise history.lose(fallen(revision, before))
        if cluster != known or term < history.term:
            history.is_suspect = True
            self.turn_from(endpoint)
            what = "another cluster" if cluster != known else f"term {term}, which has ended"
            raise MetadataUnavailable(f"etcd at {endpoint} answers for {what}")
        history.note(cluster, term, revision)


class _Away:
    """The state in which no member answers. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._error: MetadataUnavailable | None = None
        self._since = self._next_try = 0.0

    def take_turn(self, timeout_s: float) -> bool:
        """Return whether members did not answer lately, and the caller is the one to try again.

        ``timeout_s``: the longest duration of its attempt.

        Raises:
            MetadataUnavailable: No member answered, and it is not time to try again.
        """
        with self._lock:
            if self._error is None:
                return False
            now = time.monotonic()
            if now < self._next_try:
                raise MetadataUnavailable(self._error.message)
            self._next_try = now + timeout_s
            return True

    def failed(self, error: MetadataUnavailable) -> None:
        """Record a failed read. The next try is due soon."""
        with self._lock:
            if self._error is None:
                self._since = time.monotonic()
                logger.warning("no member of etcd answers: %s", error.message)
            self._error = error
            self._next_try = time.monotonic() + _TRY_S

    def answered(self) -> None:
        """Record that a member has answered."""
        if self._error is None:
            return
        with self._lock:
            if self._error is not None:
                logger.warning("etcd answers again, after %.0f s", time.monotonic() - self._since)
            self._error = None


def _unavailable(endpoint: str, error: Exception) -> MetadataUnavailable:
    return MetadataUnavailable(f"etcd at {endpoint}: {error or type(error).__name__}")


class EtcdWatch:
    """A watch: its answers, until it ends. One thread reads. Any thread may end it."""

    def __init__(
        self,
        client: EtcdClient,
        endpoint: str,
        sock: socket.socket,
        answer: http.client.HTTPResponse,
    ) -> None:
        self._client = client
        self._endpoint = endpoint
        self._sock = sock
        self._answer = answer

    def answers(self) -> Iterator[Json]:
        """Yield the answers, each with a header and perhaps events.

        Raises:
            MetadataUnavailable: the watch has ended.
            EtcdCompacted: etcd has compacted the changes since its start.
        """
        try:
            while line := self._answer.readline():
                message = json.loads(line)
                found: Json = message.get("result", {})
                if found.get("compact_revision"):
                    raise EtcdCompacted(f"compacted up to {found['compact_revision']}")
                if "error" in message or found.get("canceled"):
                    why = message.get("error") or found.get("cancel_reason") or "canceled"
                    self._client.forget_token()  # an expired token may be the cause
                    raise MetadataUnavailable(f"etcd at {self._endpoint} ended a watch: {why}")
                self._client.check_header(self._endpoint, found.get("header", {}))
                yield found
            raise MetadataUnavailable(f"etcd at {self._endpoint} ended a watch")
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise MetadataUnavailable(f"etcd at {self._endpoint}: a watch: {error}") from None

    def end(self) -> None:
        """End it. :meth:`answers` raises."""
        self._client.turn_from(self._endpoint)
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close its connection."""
        self._answer.close()
        with suppress(OSError):
            self._sock.close()


class EtcdCompacted(Exception):
    """Etcd has compacted the first changes of a watch."""


class FeedListener(Protocol):
    """The receiver of changes. It is called with the feed's lock held, and must not wait."""

    def take(self, events: Sequence[Json]) -> None:
        """Take changes, in the order of their revisions."""

    def forget(self, revision: int) -> None:
        """Drop all state: changes up to this revision may have been missed."""


class EtcdFeed:
    """The changes of the keys in ``[start, end)``, from :meth:`start` to :meth:`close`.

    A watch follows them in a separate thread. A watch that ended begins again at another member,
    from the last revision that it has seen. If etcd has compacted that revision away, the listener
    drops its state and receives only later changes.
    """

    def __init__(
        self,
        client: EtcdClient,
        start: bytes,
        end: bytes,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """``check`` runs before each watch, and raises MetadataLost if etcd has lost changes."""
        self._client = client
        self._check = check
        self._range = (start, end)
        self.changed = threading.Condition()  # guards the attributes below and the listener's state
        self.seen = 0
        """The revision up to which the listener has received all changes."""
        self._listener: FeedListener | None = None
        self._thread: threading.Thread | None = None
        self._watch: EtcdWatch | None = None
        self._closed = False
        self._awaited = 0
        self._waits = True

    def start(self, revision: int, listener: FeedListener) -> None:
        """Follow the changes after a revision, unless it follows some already."""
        with self.changed:
            if self._thread is not None or self._closed:
                return
            self._listener = listener
            self.seen = revision
            listener.forget(revision)
            self._thread = threading.Thread(target=self._run, name="isolog-etcd", daemon=True)
            self._thread.start()

    @property
    def is_started(self) -> bool:
        """Whether changes are followed."""
        return self._thread is not None

    def wait_for(self, revision: int) -> None:
        """Wait until all changes up to a revision are received. The caller holds :attr:`changed`.

        Raises:
            MetadataUnavailable: the watch does not reach it in time.
        """
        for _ in range(_WATCHES):
            if self.changed.wait_for(
                lambda: self.seen >= revision or self._closed, self._client.timeout_s
            ):
                break
            if self._watch is not None:  # its member may be behind: follow another one
                self._watch.end()
        if self.seen < revision:
            raise MetadataUnavailable(f"a watch of etcd has not reached revision {revision}")

    def await_change(self, timeout_s: float) -> None:
        """Wait for a change since the last wait, or for this time. For one thread."""
        with self.changed:
            self.changed.wait_for(
                lambda: self.seen > self._awaited or not self._waits or self._closed, timeout_s
            )
            self._awaited = self.seen

    def stop_waiting(self) -> None:
        """End the present :meth:`await_change`, and all later ones."""
        with self.changed:
            self._waits = False
            self.changed.notify_all()

    def restart(self) -> None:
        """End the watch. The next one begins with a check."""
        with self.changed:
            if self._watch is not None:
                self._watch.end()

    def close(self) -> None:
        """Follow no more."""
        with self.changed:
            self._closed = True
            if self._watch is not None:
                self._watch.end()
            self.changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._client.timeout_s)

    def _run(self) -> None:
        logged_at = -_LOG_PAUSE_S
        while not self._closed:
            pause_s = _WATCH_PAUSE_S
            try:
                self._follow()
            except MetadataLost:
                pause_s = _LOST_PAUSE_S
            except StorageFailure as error:
                if time.monotonic() - logged_at > _LOG_PAUSE_S:
                    logged_at = time.monotonic()
                    logger.info("following etcd failed: %s", error.message)
            except Exception:
                logger.exception("following etcd failed unexpectedly")
            with self.changed:
                self.changed.wait_for(lambda: self._closed, pause_s)

    def _follow(self) -> None:
        self._check()
        watch = self._client.watch(*self._range, self.seen)
        with self.changed:
            self._watch = watch
            if self._closed:
                watch.end()
        try:
            for answer in watch.answers():
                self._take(answer)
        except EtcdCompacted:
            self._restart_at_head()
        finally:
            with self.changed:
                self._watch = None
            watch.close()

    def _take(self, answer: Json) -> None:
        events = answer.get("events", [])
        if not events:
            return
        assert self._listener is not None
        with self.changed:
            self._listener.take(events)
            self.seen = int(events[-1]["kv"]["mod_revision"])
            self.changed.notify_all()

    def _restart_at_head(self) -> None:
        answer = self._client.read(RANGE, {"key": encoded(self._range[0])})
        assert self._listener is not None
        with self.changed:
            self.seen = int(answer["header"]["revision"])
            self._listener.forget(self.seen)
            self.changed.notify_all()

"""Calls to a log through any of its brokers, with retries and a deadline.

A connection belongs to one log. Each broker first sends the id of its cluster. A broker of another
cluster is refused. A lost broker causes an error before the deadline, never a hang.

Control calls go to one broker for as long as it answers. Then another one is chosen among the
bootstrap addresses and the other brokers of the cluster. Their addresses come from answers, and
from a list that is fetched every 30 seconds while there are control calls. A NotLeader error with
an address redirects the call there. Calls to the leader of a partition use :meth:`Connection.at`.

A connection belongs to the process that made it. In a forked child each call raises ForkedClient
before anything is sent.
"""

from __future__ import annotations

import math
import os
import re
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from spark_stream.client.connecting.access import OPEN, Access, checked_text
from spark_stream.client.connecting.embedded import (
    ensure_broker,
    live_address,
    recorded_cluster_id,
)
from spark_stream.client.connecting.link import BrokerLink, LogIdentity, seconds_left
from spark_stream.client.connecting.threads import call_elsewhere, weakly
from spark_stream.errors import (
    BrokerStopping,
    BrokerUnavailable,
    InvalidOption,
    InvalidRequest,
    IsologError,
    MetadataUnavailable,
    NotLeader,
    RequestTimeout,
)
from spark_stream.loggers import logger_of
from spark_stream.transport.lifetime import (
    ProcessBound,
    check_may_wait,
    new_lock,
    present_lifetime,
)
from spark_stream.wire.cluster_messages import ListBrokers
from spark_stream.wire.limits import REQUEST_TIMEOUT_S
from spark_stream.wire.messages import A, Call

logger = logger_of(__name__)

T = TypeVar("T")

_BACKOFF_FIRST_S: Final = 0.05
_BACKOFF_MAX_S: Final = 1.0
# Limits for the greeting of one of several brokers, and for its answer to the first try.
_GREETING_S: Final = 2.0
_TURN_FIRST_S: Final = 1.5  # doubled with each try
_TRIES_COUNTED: Final = 10
_LONG_TURN_LEAST_S: Final = 2.0
_LONG_TURN_PART: Final = 3
_FETCH_S: Final = 30.0
_FETCH_RETRY_S: Final = 1.0
BROKERS_MAX: Final = 256
"""The number of received addresses that a connection keeps."""
_RACK_MAX: Final = 255
_TIMEOUT_MAX_S: Final = 86_400 * 365  # far more overflows the system's timers
_LOST: Final = (BrokerUnavailable, RequestTimeout, BrokerStopping, MetadataUnavailable)
"""After these errors another broker is tried. It may reach the metadata store or the leader."""

_MOVED: Final = (
    "Check the addresses, and that the brokers are running. If all of them have moved, give their"
    " new addresses in bootstrap, or a DNS name for all brokers."
)


class ClusterConnection(ProcessBound):
    """A connection to the brokers of ``bootstrap``, or to the broker of the directory ``path``.

    ``timeout_s`` bounds a call with its retries. With ``create=False`` no log is created at
    ``path``: the first call raises UnknownLog if there is none. ``cluster_id``: the expected log,
    by default the log of the first broker that answers. ``access``: the credential and TLS files.
    ``rack``: the rack of the reader, by default ISOLOG_RACK. ``brokers``: addresses that another
    connection to the same log has received, the latest one first.
    """

    def __init__(
        self,
        bootstrap: str | None = None,
        path: Path | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        idle_seconds: float | None = None,
        *,
        create: bool = True,
        cluster_id: str | None = None,
        access: Access = OPEN,
        rack: str | None = None,
        brokers: Iterable[str] = (),
    ) -> None:
        self.lifetime = present_lifetime()
        """The lifetime of the process that made the connection."""
        self.lifetime.begin()
        self._access = access
        self.rack = rack_of(rack)
        if (bootstrap is None) == (path is None):
            raise InvalidOption("give either bootstrap (host:port) or path (a directory)")
        if not (isinstance(timeout_s, int | float) and 0 < timeout_s <= _TIMEOUT_MAX_S):
            raise InvalidOption(
                f"timeout takes seconds, above 0 and up to {_TIMEOUT_MAX_S:,}, not {timeout_s!r}"
            )
        self._named = _addresses(bootstrap) if bootstrap is not None else []
        self._path = path
        self._idle_seconds = idle_seconds
        self._create = create
        self._identity = LogIdentity(cluster_id)
        self._choosing = new_lock(is_brief=False)  # one thread at a time looks for a broker
        self._lock = new_lock()  # the innermost: guards the fields below
        self._links: dict[str, BrokerLink] = {}
        self._received = dict.fromkeys(reversed(tuple(brokers)))  # the latest one last
        self._current: BrokerLink | None = None
        self._lost = ""  # the address of the broker that was lost last
        self._fetch_at = -math.inf  # the time, on the monotonic clock, of the next list of brokers
        self._closed = False
        self._before_close: set[weakref.WeakMethod[Callable[[], None]]] = set()
        self.timeout_s = timeout_s

    @property
    def address(self) -> str:
        """The address of the broker for control calls. Empty before the first call."""
        current = self._current
        return self._lost if current is None else current.address

    @property
    def cluster_id(self) -> str | None:
        """The id of the expected log, or of the first one that answered, or None."""
        return self._identity.cluster_id

    @property
    def brokers(self) -> tuple[str, ...]:
        """The received addresses of brokers, the latest one first."""
        with self._lock:
            return tuple(reversed(self._received))

    # -- control calls --------------------------------------------------------------------------

    def call(
        self, call: Call[A], timeout_s: float | None = None, *, instead: Call[A] | None = None
    ) -> A:
        """Call a broker and return its answer. Retry after retriable errors.

        A retry may find the effect of an earlier attempt whose answer was lost. Its error has
        ``already_done`` and counts as success. An error with ``changed_meanwhile``, after a
        concurrent change, leads to another retry.

        ``timeout_s`` replaces the limit of the connection. ``instead`` is sent for the rest of the
        change after an ``already_done`` error.
        """
        may_be_done = False

        def attempt(link: BrokerLink, within_s: float) -> A:
            nonlocal may_be_done
            deadline = time.monotonic() + within_s
            link.connect(within_s)  # an attempt without a connection has no effect
            try:
                return _call(link, call, deadline)
            except _LOST:
                may_be_done = True
                raise
            except IsologError as error:
                if not may_be_done:
                    raise
                if error.details.get("changed_meanwhile"):
                    raise RequestTimeout(
                        f"an earlier attempt of {call.wire_name} may still run: {error.message}"
                    ) from None
                if not error.details.get("already_done"):
                    raise
                if instead is None:
                    return call.answer_from(b"")
                return _call(link, instead, deadline)

        return self.retry(attempt, timeout_s, once=call.once)

    def retry(
        self,
        call: Callable[[BrokerLink, float], T],
        timeout_s: float | None = None,
        *,
        once: bool = False,
    ) -> T:
        """Call until it succeeds, the error is final, or the time has run out.

        A broker that is not the leader may name the leader, which is called next. ``once``: the
        call is an operator's, and should not run at two brokers. So each broker gets more time, and
        the call fails immediately if only an operator can make the metadata store writable again.
        """
        deadline = self._deadline(timeout_s)
        leader: BrokerLink | None = None
        sent_on = False
        lost: IsologError | None = None  # the failure of the leader that was named
        for tries, pause in enumerate(_pauses()):
            link = leader
            try:
                if link is None:
                    link = self.link(seconds_left(deadline))
                return call(link, self.turn(deadline, tries, once=once))
            except IsologError as error:
                if link is not None and isinstance(error, _LOST):
                    self._give_up(link)
                if leader is not None and not isinstance(error, NotLeader):
                    lost = error
                leader = self._leader_of(error)
                stands = once and isinstance(error, MetadataUnavailable) and error.takes_no_changes
                if stands or not error.retriable or time.monotonic() + pause > deadline:
                    if isinstance(error, NotLeader) and lost is not None:
                        raise lost from None
                    raise
                if leader is None or sent_on:
                    time.sleep(pause)
                sent_on = leader is not None
        raise AssertionError("unreachable: the pauses do not end")

    def check_open(self) -> None:
        """Raise InvalidRequest if the connection was closed."""
        if self._closed:
            raise InvalidRequest("the connection is closed", hint="Connect again.")

    def at(self, address: str) -> BrokerLink:
        """Return the link to the broker at the address."""
        self.lifetime.check()
        with self._lock:
            self.check_open()
            found = self._links.get(address)
            if found is None:
                is_received = self._path is None and address not in self._named
                found = BrokerLink(address, self._identity, self._access, is_received=is_received)
                self._links[address] = found
            return found

    def to(self, broker_id: str, address: str) -> BrokerLink:
        """Return the link to the broker of this id, which reports this address.

        The broker for control calls keeps the address where it answered, because a broker behind a
        proxy may report another one.
        """
        current = self._current
        if current is not None and current.broker_id == broker_id:
            return current
        return self.at(address)

    def link(self, timeout_s: float | None = None) -> BrokerLink:
        """Return the link to a broker of this log for control calls. Choose one if there is none.

        Raises:
            BrokerUnavailable, RequestTimeout: No broker answers in ``timeout_s``.
            WrongCluster: The broker belongs to another log.
            UnknownLog: There is no log.
        """
        deadline = self._deadline(timeout_s)
        found = self._present()
        if found is not None:
            if self._path is None and time.monotonic() >= self._fetch_at:
                self._fetch_at = time.monotonic() + _FETCH_S
                ask = weakly(self.fetch_brokers, found, _GREETING_S)
                with suppress(RuntimeError):  # the interpreter is ending
                    call_elsewhere(("brokers", id(self)), ask)
            return found
        if not self._choosing.acquire(timeout=seconds_left(deadline)):
            raise RequestTimeout("another thread is looking for a broker and found none in time")
        try:
            return self._present() or self._choose(deadline)
        finally:
            self._choosing.release()

    def connect(self, timeout_s: float | None = None) -> None:
        """Connect to a broker of this log in one try. Raise the errors of :meth:`link`.

        If that fails, the next call goes to another broker.
        """
        deadline = self._deadline(timeout_s)
        link = self.link(seconds_left(deadline))
        try:
            link.connect(seconds_left(deadline))
        except _LOST:
            self._give_up(link)
            raise

    def _deadline(self, timeout_s: float | None) -> float:
        within_s = self.timeout_s if timeout_s is None else timeout_s
        return self.lifetime.bounded(time.monotonic() + within_s)

    def turn(self, deadline: float, tries: int = 0, *, once: bool = False) -> float:
        """Return the seconds for one try, which leave time for another broker if there is one.

        ``tries``: the number of earlier tries. ``once``: as in :meth:`retry`.
        """
        if len(self._candidates()) < 2:
            return seconds_left(deadline)
        if once:
            return min(
                seconds_left(deadline), max(_LONG_TURN_LEAST_S, self.timeout_s / _LONG_TURN_PART)
            )
        return min(seconds_left(deadline), _TURN_FIRST_S * 2.0 ** min(tries, _TRIES_COUNTED))

    def add_brokers(self, addresses: Iterable[str]) -> None:
        """Add addresses of the cluster's brokers, for use when the others do not answer.

        A connection to a directory ignores them: its control calls go to that directory's broker.
        """
        if self._path is not None:
            return
        with self._lock:
            for address in addresses:
                if address:
                    self._received.pop(address, None)
                    self._received[address] = None
            while len(self._received) > BROKERS_MAX:
                del self._received[next(iter(self._received))]

    # -- the brokers ----------------------------------------------------------------------------

    def _leader_of(self, error: IsologError) -> BrokerLink | None:
        address = error.details.get("address") if isinstance(error, NotLeader) else None
        if not isinstance(address, str) or not address:
            return None
        self.add_brokers([address])
        return self.at(address)

    def _give_up(self, link: BrokerLink) -> None:
        with self._lock:
            if self._current is link:
                self._current, self._lost = None, link.address

    def _present(self) -> BrokerLink | None:
        self.lifetime.check()
        with self._lock:
            self.check_open()
            return self._current

    def _candidates(self) -> list[str]:
        """Return all addresses, with the last one that failed at the end."""
        with self._lock:
            known = dict.fromkeys([*self._named, *reversed(self._received)])
            return sorted(known, key=lambda address: address == self._lost)

    def _choose(self, deadline: float) -> BrokerLink:
        if self._path is not None:
            found = self.at(self._address_of(self._path))
            found.connect(seconds_left(deadline))
        else:
            found = self._first_that_answers(deadline)
            self.fetch_brokers(found, min(_GREETING_S, seconds_left(deadline)))
        with self._lock:
            self._current = found
        return found

    def _first_that_answers(self, deadline: float) -> BrokerLink:
        addresses = self._candidates()
        failure: IsologError | None = None
        for number, address in enumerate(addresses, 1):
            last = number == len(addresses)
            try:
                found = self.at(address)
                found.connect(
                    seconds_left(deadline) if last else min(_GREETING_S, seconds_left(deadline))
                )
                return found
            except BrokerUnavailable as error:
                failure = failure or error
            except RequestTimeout as error:
                failure = error  # a broker accepts connections but does not answer
            except IsologError as error:
                if address in self._named:
                    raise
                logger.warning("ignoring the broker at %s: %s", address, error)
        if isinstance(failure, RequestTimeout):
            raise failure
        names = ", ".join(addresses)
        message = f"no broker answers at {names}"
        if failure is not None and len(addresses) == 1:
            message = failure.message  # its message has the reason
        raise BrokerUnavailable(message, hint=_MOVED, address=names)

    def fetch_brokers(self, link: BrokerLink, timeout_s: float) -> None:
        """Fetch the list of brokers. After a failure it is due again in a second."""
        try:
            found = link.call(ListBrokers(), timeout_s)
        except IsologError:
            self._fetch_at = time.monotonic() + _FETCH_RETRY_S
            return
        self._fetch_at = time.monotonic() + _FETCH_S
        self.add_brokers(each.address for each in found.brokers)

    def _address_of(self, directory: Path) -> str:
        """Return the address of the directory's broker, after starting one if needed."""
        # A log that has answered and is missing now is an error, not a reason to create another.
        create = self._create and self._identity.cluster_id is None
        recorded = recorded_cluster_id(directory)
        if recorded is not None:  # refuse a broker whose directory now holds another log
            self._identity.check(str(directory), recorded)
        return live_address(directory) or ensure_broker(
            directory, self._idle_seconds, create=create
        )

    def before_close(self, act: Callable[[], None]) -> None:
        """Register a bound method to call when the connection is closed, before its last call."""
        with self._lock:
            self._before_close.add(weakref.WeakMethod(act, self._before_close.discard))

    def close(self) -> None:
        """Refuse new calls. Calls under way finish.

        Raises:
            ReentrantCall: The caller has interrupted a call that other threads wait for.
        """
        if self._before_close and not self.lifetime.is_over:
            check_may_wait()
        with self._lock:
            before, self._before_close = self._before_close, set()
        for reference in list(before):
            if (act := reference()) is not None:
                act()
        with self._lock:
            self._closed = True
            links = list(self._links.values())
        for each in links:
            each.close()


def _call(link: BrokerLink, call: Call[A], deadline: float) -> A:
    """Call one broker. Omit the hints that its release does not support."""
    while True:
        try:
            return link.call(call, seconds_left(deadline))
        except InvalidRequest as error:
            older = call.without_hint(error)
            if older is None:
                raise
            call = older


def rack_of(given: str | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the given rack, or the one of ISOLOG_RACK, or None.

    Raises:
        InvalidOption: The rack is not a text of 1 to 255 characters.
    """
    rack = environment.get("ISOLOG_RACK") or None if given is None else given
    if rack is not None and not (isinstance(rack, str) and 1 <= len(rack) <= _RACK_MAX):
        text = f"rack takes a text of 1 to {_RACK_MAX} characters, not {rack!r}"
        raise InvalidOption(text, option="rack")
    return None if rack is None else checked_text("rack", rack)


def _pauses() -> Iterator[float]:
    pause = _BACKOFF_FIRST_S
    while True:
        yield pause
        pause = min(_BACKOFF_MAX_S, 2 * pause)


def _addresses(bootstrap: str) -> list[str]:
    if not isinstance(bootstrap, str):
        raise InvalidOption(
            f"bootstrap takes a text, host:port or several with commas between, not {bootstrap!r}",
            option="bootstrap",
        )
    addresses = [part.strip() for part in bootstrap.split(",") if part.strip()]
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if address.startswith("unix:") and port:
            continue
        named = host and not re.search(r"[/\s]", host)  # a URL is no address
        if not (colon and named and port.isdecimal() and 0 < int(port) < 65536):
            raise InvalidOption(
                f"bootstrap: {address!r} is not host:port", option="bootstrap", value=address
            )
    if not addresses:
        raise InvalidOption("bootstrap is empty; give host:port[,host:port…]", option="bootstrap")
    return addresses

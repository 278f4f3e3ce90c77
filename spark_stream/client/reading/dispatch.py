"""Routing of fetches: leaders are looked up, and brokers connected, before fetches are sent.

Only calls on the few threads of ``connecting.threads`` block. One call looks up the leaders of a
topic, and one call connects to a broker, however many fetches wait for them.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from spark_stream.client.connecting.link import BrokerLink, SharedChannel
from spark_stream.client.connecting.router import Router
from spark_stream.client.connecting.routes import Route
from spark_stream.client.connecting.threads import call_elsewhere, weakly
from spark_stream.client.reading.core import RangeFetch
from spark_stream.client.reading.fetching import Source
from spark_stream.errors import IsologError
from spark_stream.transport.lifetime import new_lock
from spark_stream.wire.cluster_messages import BrokerAddress

_CALL_S: Final = 5.0  # then the next call runs, and the core retries


class Sending(NamedTuple):
    """A fetch, the route to its leader, and the follower that serves it instead of the leader."""

    fetch: RangeFetch[int]
    route: Route
    follower: BrokerAddress | None = None

    @property
    def broker(self) -> tuple[str, str]:
        """The id and the address of the broker that serves the fetch."""
        follower, route = self.follower, self.route
        return (
            (route.leader, route.address) if follower is None else (follower.id, follower.address)
        )


class Reader(Protocol):
    """The reader whose fetches are sent."""

    def open(self, group: list[Sending], shared: SharedChannel) -> None:
        """Send these requests in one call."""

    def refuse(
        self, fetches: Sequence[RangeFetch[int]], error: IsologError, *, at_followers: bool = False
    ) -> None:
        """Record that these fetches failed. ``at_followers``: before they reached followers."""

    def fail(self, error: Exception) -> None:
        """Report an unexpected error."""


class Dispatcher:
    """Sender of one reader's fetches. ``together``: fetches to one broker go in one call.

    The lock guards the waiting fetches.
    """

    def __init__(
        self, reader: Reader, router: Router, sources: Sequence[Source], *, together: bool
    ) -> None:
        self._reader: weakref.ref[Reader] = weakref.ref(reader)
        self._router = router
        self._sources = sources
        self._together = together
        self._timeout_s = min(_CALL_S, router.timeout_s)
        self._lock = new_lock()
        self._finding: dict[tuple[str, str], list[RangeFetch[int]]] = {}
        self._connecting: dict[str, list[Sending]] = {}

    def send(self, fetches: Sequence[RangeFetch[int]]) -> None:
        """Send fetches to their brokers, after the look-up of unknown leaders."""
        by_topic: dict[tuple[str, str], list[RangeFetch[int]]] = defaultdict(list)
        by_broker: dict[tuple[str, str], list[Sending]] = defaultdict(list)
        for fetch in fetches:
            source = self._sources[fetch.key]
            topic = source.view.topic, source.topic_id
            route = self._router.known(*topic, source.partition)
            if route is None or (fetch.may_use_follower and not self._router.was_looked_up(*topic)):
                by_topic[topic].append(fetch)
                continue
            if fetch.may_use_follower and self._router.claim_look_up(*topic):
                call_elsewhere(("look up", id(self._router)), weakly(self._look_up, topic))
            sending = Sending(
                fetch, route, self._router.near(route) if fetch.may_use_follower else None
            )
            by_broker[sending.broker].append(sending)
        for topic, unknown in by_topic.items():  # together, so that they can share a call
            with self._lock:
                is_first = topic not in self._finding
                self._finding.setdefault(topic, []).extend(unknown)
            if is_first:
                call_elsewhere(("fetch", id(self._router)), weakly(self._find, topic))
        for group in by_broker.values():
            self._send(group)

    def _send(self, sendings: list[Sending]) -> None:
        """Send fetches that go to one broker."""
        try:
            link = self._router.link_to(*sendings[0].broker)
            shared = link.present()
        except IsologError as error:
            self._refuse(sendings, error)
            return
        if shared is not None:
            self._open(sendings, shared)
            return
        with self._lock:
            is_first = link.address not in self._connecting
            self._connecting.setdefault(link.address, []).extend(sendings)
        if is_first:
            call_elsewhere(("connect", link.address), weakly(self._connect, link))

    def _open(self, sendings: list[Sending], shared: SharedChannel) -> None:
        groups: dict[object, list[Sending]] = defaultdict(list)
        for each in sendings:
            groups[self._group_of(each)].append(each)
        reader = self._reader()
        if reader is not None:
            for group in groups.values():
                reader.open(group, shared)

    def _group_of(self, sending: Sending) -> object:
        """Return the key of a fetch. Fetches with the same key share a call.

        If calls may be shared, the key is the requested columns. Otherwise it is the fetch's own
        number, so that each fetch has a separate call.
        """
        if not self._together:
            return sending.fetch.number
        view = self._sources[sending.fetch.key].view
        return str([view.field(name) for name in view.requested])

    def _refuse(self, sendings: list[Sending], error: IsologError) -> None:
        for _, route, follower in sendings:
            self._router.on_failed(route, error, follower)
        reader = self._reader()
        if reader is not None:
            reader.refuse([each.fetch for each in sendings if each.follower is None], error)
            reader.refuse(
                [each.fetch for each in sendings if each.follower], error, at_followers=True
            )

    # -- on a thread that may wait --------------------------------------------------------------

    def _find(self, topic: tuple[str, str]) -> None:
        reader = self._reader()
        if reader is None:
            return
        try:
            failure: IsologError | None = None
            first = self._sources[self._finding[topic][0].key].partition
            try:
                if self._router.was_looked_up(*topic):
                    self._router.route(*topic, first, self._timeout_s)
                else:
                    self._router.refresh(*topic, self._timeout_s)
            except IsologError as error:
                failure = error
            with self._lock:
                waiting = self._finding.pop(topic)
            found = []
            for fetch in waiting:
                number = self._sources[fetch.key].partition
                if self._router.known(*topic, number) is not None:
                    found.append(fetch)
                else:
                    reader.refuse([fetch], failure or self._router.no_leader(topic[0], number))
            self.send(found)
        except Exception as error:
            reader.fail(error)

    def _look_up(self, topic: tuple[str, str]) -> None:
        with suppress(IsologError):  # the cached routes stay valid
            self._router.refresh(*topic, self._timeout_s)

    def _connect(self, link: BrokerLink) -> None:
        reader = self._reader()
        if reader is None:
            return
        try:
            failure: IsologError | None = None
            try:
                shared = link.connect(self._timeout_s)
            except IsologError as error:
                failure = error
            with self._lock:
                waiting = self._connecting.pop(link.address)
            if failure is not None:
                self._refuse(waiting, failure)
            else:
                self._open(waiting, shared)
        except Exception as error:
            reader.fail(error)

"""The data of a user's pages, polled once for all pages of the user.

A separate task polls each *part*, so that a slow answer delays no other part. Without open pages
the parts are polled rarely, so that trends have a history. A part that fails keeps its last value
and has an error beside it. The problems are derived from the other parts, after each change of one
of them. :meth:`LiveBoard.changes` yields the changed parts.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Any, Final

import anyio.to_thread
from msgspec import Struct

from spark_stream.client.leaders import Partitions
from spark_stream.client.trends import LagTrend, Window, sample_of
from spark_stream.consistency.isolation import ReaderState
from spark_stream.console.client import (
    DISK_S,
    HISTORY_S,
    HISTORY_STEP_S,
    RATE_S,
    ConsoleClient,
    Leaders,
    RecentSamples,
    failovers,
    full_in_s,
    growth,
    holders,
    leader_changes,
    note_leaders,
    on_disks,
    open_places,
    partition_shown,
    plain,
)
from spark_stream.console.history import History, HistorySample
from spark_stream.console.lakes import lakes_of
from spark_stream.console.problems import FirstSeen, has_store_problem, is_silent, is_slow, judge
from spark_stream.errors import InternalError, IsologError, Unauthenticated
from spark_stream.loggers import logger_of
from spark_stream.wire.transaction_messages import UNFINISHED

logger = logger_of(__name__)

PARTS: Final[Mapping[str, float]] = {
    "cluster": 2.0,
    "topics": 1.0,
    "transactions": 1.0,
    "consumers": 2.0,
    "failovers": 2.0,
    "lakes": 5.0,
}
"""The parts that are always polled, with the interval in seconds."""

PROBLEMS: Final = "problems"
HISTORY: Final = "history"
_JUDGED: Final = ("cluster", "topics", "transactions", "consumers", "lakes")
"""The parts with problems."""
_TOPIC: Final = "topic:"
_TOPIC_S: Final = 1.0
_ALONE_S: Final = 10.0  # the interval without open pages
_BEAT_S: Final = 15.0
_THREADS_MAX: Final = 6
_WITHOUT_RUN: Final = (ReaderState.STOPPED, ReaderState.EMPTY, ReaderState.GONE)


class Part(Struct, frozen=True):
    """A part as JSON text. ``number`` increases with each change."""

    text: str
    number: int


class LiveBoard:
    """The parts of one user. All coroutines run in one event loop."""

    def __init__(
        self, client: ConsoleClient, history: History | None = None, *, is_sampler: bool = True
    ) -> None:
        """``history``: the samples of earlier boards, and of this one if it is the sampler.

        Otherwise another board takes the samples. Then the user sees them only if it may describe
        the cluster.
        """
        self._client = client
        self._history_of_day = history
        self._is_sampler = is_sampler
        self._shown_ms = 0
        self._parts: dict[str, Part] = {}
        self._values: dict[str, Any] = {}
        self._changed = asyncio.Condition()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._watched: dict[str, int] = {}  # topics, and by how many streams
        self._streams = 0
        self._limit = anyio.CapacityLimiter(_THREADS_MAX)
        self._partitions: Partitions = {}
        self._leaders: Leaders = {}
        self._records: RecentSamples[tuple[str, int], float] = RecentSamples(RATE_S)
        self._sizes: RecentSamples[tuple[str, int], float] = RecentSamples(DISK_S)
        self._free: RecentSamples[str, float] = RecentSamples(DISK_S)
        self._history: RecentSamples[None, float] = RecentSamples(HISTORY_S)
        self._window = Window()
        self._unlisted: dict[int, int] = {}
        """The time (ms) since which each open transaction has been missing in the list."""
        self._first_seen = FirstSeen()
        if history is not None:
            now_ms = time.time_ns() // 1_000_000
            self._first_seen.restore(history.starts(now_ms), now_ms)
        self._errors: dict[str, str] = {}  # of parts whose poll failed
        self._closed = False
        self.is_refused = False
        """Whether the cluster rejects the user's credential."""

    def start(self) -> None:
        """Start to poll."""
        polls: dict[str, Callable[[], Any]] = {
            "cluster": self._cluster,
            "topics": self._topics,
            "transactions": self._transactions,
            "consumers": self._consumers,
            "failovers": self._failovers,
            "lakes": self._lakes,
        }
        for name, poll in polls.items():
            self._tasks[name] = asyncio.create_task(self._repeat(name, PARTS[name], poll))

    async def close(self) -> None:
        """End all tasks and streams, and close the connection."""
        self._closed = True
        async with self._changed:
            self._changed.notify_all()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await anyio.to_thread.run_sync(self._client.close)

    async def changes(
        self, parts: Collection[str], topic: str | None
    ) -> AsyncIterator[tuple[str, str] | None]:
        """Yield the name and the text of each part that changes, and None after a while without.

        ``topic``: also watch this topic, as the part ``topic``.
        """
        names = {each: each for each in parts if each in PARTS or each in (PROBLEMS, HISTORY)}
        if topic is not None:
            names[_TOPIC + topic] = "topic"
            self._watch(topic)
        self._streams += 1
        sent: dict[str, int] = {}
        try:
            while not self._closed:
                fresh = [
                    (name, part)
                    for name in names
                    if (part := self._parts.get(name)) is not None and part.number != sent.get(name)
                ]
                for name, part in fresh:
                    sent[name] = part.number
                    yield names[name], part.text
                if not fresh:
                    try:
                        async with asyncio.timeout(_BEAT_S), self._changed:
                            await self._changed.wait()
                    except TimeoutError:
                        yield None
        finally:
            self._streams -= 1
            if topic is not None:
                self._unwatch(topic)

    def _watch(self, topic: str) -> None:
        self._watched[topic] = self._watched.get(topic, 0) + 1
        name = _TOPIC + topic
        if name not in self._tasks and not self._closed:
            repeating = self._repeat(name, _TOPIC_S, self._topic, topic)
            self._tasks[name] = asyncio.create_task(repeating)

    def _unwatch(self, topic: str) -> None:
        self._watched[topic] -= 1
        if not self._watched[topic]:
            del self._watched[topic]
            name = _TOPIC + topic
            if name in self._tasks:
                self._tasks.pop(name).cancel()
            self._parts.pop(name, None)
            self._values.pop(name, None)

    async def _repeat(
        self, name: str, pause_s: float, poll: Callable[..., Any], *given: str
    ) -> None:
        while True:
            error = None
            try:
                found = await anyio.to_thread.run_sync(
                    poll, *given, limiter=self._limit, abandon_on_cancel=True
                )
                self._values[name] = found
            except IsologError as failed:
                error = failed.to_wire()
                self.is_refused = self.is_refused or isinstance(failed, Unauthenticated)
            except Exception:
                logger.exception("failed to poll part %s of the board", name)
                error = InternalError(
                    "the console failed", hint="See the output of `isolog console`."
                ).to_wire()
            await self._publish(name, error)
            if name in _JUDGED:
                self._errors.pop(name, None)
                if error is not None:
                    self._errors[name] = error["message"]
                self._values[PROBLEMS] = self._judge()
                await self._publish(PROBLEMS, None)
                if self._note_history(time.time_ns() // 1_000_000):
                    await self._publish(HISTORY, None)
            due = asyncio.get_running_loop().time() + _ALONE_S
            await asyncio.sleep(pause_s)
            while not self._streams and asyncio.get_running_loop().time() < due:
                await asyncio.sleep(0.2)

    async def _publish(self, name: str, error: Any) -> None:
        text = json.dumps({"value": self._values.get(name), "error": error})
        before = self._parts.get(name)
        if before is None or before.text != text:
            self._parts[name] = Part(text, 0 if before is None else before.number + 1)
            async with self._changed:
                self._changed.notify_all()

    # -- the parts, polled on threads -------------------------------------------------------------

    def _judge(self) -> dict[str, Any]:
        """Return the problems, and the reasons for parts that could not be judged."""
        now_ms = time.time_ns() // 1_000_000
        found = judge({name: self._values.get(name) for name in _JUDGED}, now_ms)
        pending = {each: "no answer yet" for each in _JUDGED if each not in self._values}
        return {
            "found": plain(self._first_seen.stamp(found, now_ms)),
            "unjudged": pending | self._errors,
        }

    def _note_history(self, now_ms: int) -> bool:
        """Add a sample if one is due, and all parts were polled. Return whether there is a new one.

        A figure without a permission is unknown.
        """
        history = self._history_of_day
        if history is None or not self._values.keys() | self._errors.keys() >= set(_JUDGED):
            return False
        if self._is_sampler and history.is_due(now_ms):
            history.add(sample_of_parts(self._values, self._errors, now_ms))
        may_see = self._is_sampler or "cluster" not in self._errors
        if not may_see or history.latest_ms == self._shown_ms:
            return False
        self._shown_ms = history.latest_ms
        self._values[HISTORY] = history.curves(now_ms)
        return True

    def _cluster(self) -> dict[str, Any]:
        shown, now = self._client.cluster(), time.monotonic()
        growths = {key: growth(self._sizes.of(key)) for key in _keys(self._partitions)}
        disks = on_disks(self._partitions, growths)
        for each in shown["brokers"]:
            name, status = each["id"], each["status"]
            if status is not None and status["disk_total"]:
                self._free.add(name, now, status["disk_free"])
            each["full_in_s"] = full_in_s(self._free.of(name))
            each["fills_bytes_per_s"] = -growth(self._free.of(name))
            each["on_disk"] = disks.get(name, [])
            each["led"] = [
                f"{topic}/{number}"
                for topic, numbers in self._partitions.items()
                for number, seen in numbers.items()
                if status is not None and status["refused"] and seen.leader == name
            ]
            each["is_silent"] = is_silent(each)
        for each in shown["brokers"]:
            each["is_slow"] = is_slow(each, shown["brokers"])
        self._free.keep([each["id"] for each in shown["brokers"]])
        return shown

    def _topics(self) -> dict[str, Any]:
        self._partitions = found = self._client.partitions()
        self._leaders = note_leaders(self._leaders, found)
        topics: list[dict[str, Any]] = []
        for name, numbers in found.items():
            for number, each in numbers.items():
                key, facts = (name, number), each.found.facts
                self._records.add(key, each.at_s, each.found.log_end_offset)
                if facts is not None:
                    self._sizes.add(key, each.at_s, facts.size)
            seen = [each.found for each in numbers.values()]
            known = [each.facts for each in seen if each.facts is not None]
            topics.append(
                {
                    "name": name,
                    "led_partitions": len(seen),
                    "records": sum(each.log_end_offset - each.log_start_offset for each in seen),
                    "size": sum(each.size for each in known),
                    "records_per_s": sum(self._rate(name, number) for number in numbers),
                    "open_transactions": len({o.transaction for each in known for o in each.open}),
                }
            )
        keys = _keys(found)
        self._records.keep(keys)
        self._sizes.keep(keys)
        return {
            "topics": topics,
            "written": self._written(sum(each["records_per_s"] for each in topics)),
        }

    def _failovers(self) -> list[dict[str, Any]] | None:
        """Return the failovers of the known partitions, None before the first answer."""
        cluster = self._values.get("cluster")
        if cluster is None or "topics" not in self._values:
            return None
        now_ms = time.time_ns() // 1_000_000
        started_ms = {
            each["id"]: now_ms - round(1000 * each["status"]["uptime_s"])
            if each["status"] is not None
            else 0
            for each in cluster["brokers"]
            if each["alive"]
        }
        return failovers(leader_changes(self._partitions, self._leaders), started_ms)

    def _lakes(self) -> list[dict[str, Any]] | None:
        """Return the lakes, None before the first answer about partitions."""
        if "topics" not in self._values:
            return None
        return lakes_of(self._client.log, self._partitions)

    def _rate(self, topic: str, number: int) -> float:
        """Return the records per second that are written to a partition."""
        return round(max(0.0, growth(self._records.of((topic, number)))), 1)

    def _written(self, rate: float) -> list[tuple[int, float]]:
        """Return the records per second in the cluster, every few seconds of the last minutes.

        Each rate has its age in seconds. The latest is the last.
        """
        now, history = time.monotonic(), self._history.of(None)
        if not history or now - history[-1][0] >= HISTORY_STEP_S:
            self._history.add(None, now, rate)
        return [(round(now - at_s), each) for at_s, each in self._history.of(None)]

    def _topic(self, name: str) -> dict[str, Any]:
        shown = self._client.topic(name)
        seen = self._partitions.get(name, {})
        for each in shown["partitions"]:
            number = each["partition"]
            found = seen.get(number)
            each["live"] = None
            if found is not None and found.topic_id == shown["id"]:
                leaders = self._leaders.get((name, shown["id"], number), {})
                each["live"] = partition_shown(number, found, leaders)
                each["live"]["records_per_s"] = self._rate(name, number)
        return shown

    def _transactions(self) -> list[dict[str, Any]]:
        found, places = self._client.list_transactions(), open_places(self._partitions)
        for each in found:
            each["places"] = places.get(each["number"], [])
            each["held_back"] = sum(place["held_back"] for place in each["places"])
        return found

    def _consumers(self) -> dict[str, Any]:
        found, now = self._client.consumers(), time.monotonic()
        open_ = holders(self._partitions)
        names = {
            each["number"]: each["transactional_id"]
            for each in self._values.get("transactions", [])
        }
        now_ms = time.time_ns() // 1_000_000
        self._unlisted = {
            number: self._unlisted.get(number, now_ms)
            for number in set(open_.values()) - set(names)
        }
        store_is_faulty = has_store_problem(self._values.get("cluster"))
        keys = set()
        for each in found["consumers"]:
            has_trend = not store_is_faulty and each["state"] not in _WITHOUT_RUN
            waits_for, known = set(), []
            for at in each["partitions"]:
                if at["lag"] is None:
                    continue
                place, readable = (at["topic_id"], at["partition"]), at["lag"] - at["held_back"]
                known.append((place, at["offset"], readable))
                if at["held_back"] and not readable and place in open_:
                    waits_for.add(open_[place])
            each["trend"] = LagTrend.UNKNOWN
            if has_trend:
                key, in_batches = (each["name"], each["kind"]), each["kind"] == "query"
                keys.add(key)
                sample = sample_of(now, known)
                each["trend"] = self._window.add(key, sample, in_batches=in_batches)
            each["waits_for"] = [
                {
                    "number": number,
                    "transactional_id": names.get(number),
                    "unlisted_since_ms": self._unlisted.get(number),
                }
                for number in waits_for
            ]
        self._window.keep(keys)
        return found


def sample_of_parts(
    parts: Mapping[str, Any], errors: Collection[str], now_ms: int
) -> HistorySample:
    """Return the figures of the parts. Those of parts in ``errors`` are unknown."""
    known = {name: parts[name] for name in _JUDGED if name not in errors}
    figures: dict[str, Any] = {}
    if (cluster := known.get("cluster")) is not None:
        brokers = cluster["brokers"]
        figures["alive"] = sum(each["alive"] for each in brokers)
        figures["out_of_sync"] = sum(each["replicas"] - each["in_sync"] for each in brokers)
        led = sum(each["leaders"] for each in brokers)
        figures["offline"] = max(0, cluster["partitions"] - led)
    if (topics := known.get("topics")) is not None:
        figures["records_per_s"] = sum(each["records_per_s"] for each in topics["topics"])
    if (readers := known.get("consumers")) is not None:
        figures["lag"] = sum(each["lag"] or 0 for each in readers["consumers"])
    if (transactions := known.get("transactions")) is not None:
        began = [each["began_ms"] for each in transactions if each["state"] in UNFINISHED]
        figures["oldest_open_s"] = max(0.0, (now_ms - min(began, default=now_ms)) / 1000)
    problems = {each["key"]: each["since_ms"] for each in parts[PROBLEMS]["found"]}
    return HistorySample(now_ms, **figures, problems=problems)


def _keys(partitions: Partitions) -> set[tuple[str, int]]:
    return {(topic, number) for topic, numbers in partitions.items() for number in numbers}

"""What a user's pages show now: asked for once for all of them, again and again.

Each *part* is asked for by a task of its own, so a slow answer delays no other part. While nobody
looks, everything is asked for seldom, so that trends have a past. A part that fails keeps its last
value and has an error beside it. :meth:`LiveBoard.changes` yields what has changed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from functools import partial
from typing import Any, Final

import anyio.to_thread
from msgspec import Struct

from spark_stream.client.trends import LagSample, Window, worst
from spark_stream.console.asking import (
    Asking,
    Partitions,
    leader_changes,
    open_places,
    partition_shown,
)
from spark_stream.errors import InternalError, IsologError, Unauthenticated

logger = logging.getLogger(__name__)

PARTS: Final[Mapping[str, float]] = {
    "cluster": 2.0,
    "topics": 1.0,
    "transactions": 1.0,
    "consumers": 2.0,
}
"""The parts that are always asked for, and every how many seconds."""

_TOPIC: Final = "topic:"
_TOPIC_S: Final = 1.0
_ALONE_S: Final = 10.0  # while nobody looks
_BEAT_S: Final = 15.0
_RATE_S: Final = 10.0
_THREADS_MAX: Final = 6


class Part(Struct, frozen=True):
    """A part as text of JSON; ``number`` rises with each change."""

    text: str
    number: int


class LiveBoard:
    """The parts of one user. Its coroutines belong to one loop."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._parts: dict[str, Part] = {}
        self._values: dict[str, Any] = {}
        self._changed = asyncio.Condition()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._watched: dict[str, int] = {}  # topics, and by how many streams
        self._streams = 0
        self._limit = anyio.CapacityLimiter(_THREADS_MAX)
        self._partitions: Partitions = {}
        self._rates = Rates()
        self._window = Window()
        self._closed = False
        self.is_refused = False
        """Whether the cluster no longer takes the user's credential."""

    def start(self) -> None:
        """Begin to ask."""
        asks: dict[str, Callable[[], Any]] = {
            "cluster": self._asking.cluster,
            "topics": self._topics,
            "transactions": self._transactions,
            "consumers": self._consumers,
        }
        for name, ask in asks.items():
            self._tasks[name] = asyncio.create_task(self._repeat(name, PARTS[name], ask))

    async def close(self) -> None:
        """End all tasks and streams, and close the connection."""
        self._closed = True
        async with self._changed:
            self._changed.notify_all()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await anyio.to_thread.run_sync(self._asking.close)

    async def changes(
        self, parts: Collection[str], topic: str | None
    ) -> AsyncIterator[tuple[str, str] | None]:
        """Yield the name and the text of each part that changes; None now and then if none does.

        ``topic``: this topic is watched too, as the part ``topic``.
        """
        names = {each: each for each in parts if each in PARTS}
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
                self._forget(topic)

    def _watch(self, topic: str) -> None:
        self._watched[topic] = self._watched.get(topic, 0) + 1
        name = _TOPIC + topic
        if name not in self._tasks and not self._closed:
            ask = partial(self._topic, topic)
            self._tasks[name] = asyncio.create_task(self._repeat(name, _TOPIC_S, ask))

    def _forget(self, topic: str) -> None:
        self._watched[topic] -= 1
        if not self._watched[topic]:
            del self._watched[topic]
            name = _TOPIC + topic
            if name in self._tasks:
                self._tasks.pop(name).cancel()
            self._parts.pop(name, None)
            self._values.pop(name, None)

    async def _repeat(self, name: str, pause_s: float, ask: Callable[[], Any]) -> None:
        while True:
            error = None
            try:
                found = await anyio.to_thread.run_sync(
                    ask, limiter=self._limit, abandon_on_cancel=True
                )
                self._values[name] = found
            except IsologError as failed:
                error = failed.to_wire()
                self.is_refused = self.is_refused or isinstance(failed, Unauthenticated)
            except Exception:
                logger.exception("the part %s cannot be shown", name)
                error = InternalError("the console failed; its own output says why").to_wire()
            await self._publish(name, error)
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

    # -- the parts, each on a thread --------------------------------------------------------------

    def _topics(self) -> dict[str, Any]:
        self._partitions = found = self._asking.partitions()
        topics = []
        for name, numbers in found.items():
            seen = [each.found for each in numbers.values()]
            facts = [each.facts for each in seen if each.facts is not None]
            ends = sum(each.log_end_offset for each in seen)
            size = sum(each.size for each in facts)
            rate, bytes_s = self._rates.add((name, None), time.monotonic(), ends, size)
            topics.append(
                {
                    "name": name,
                    "led_partitions": len(seen),
                    "records": sum(each.log_end_offset - each.log_start_offset for each in seen),
                    "size": size,
                    "records_per_s": rate,
                    "bytes_per_s": bytes_s,
                    "open_transactions": len({o.transaction for each in facts for o in each.open}),
                }
            )
        self._rates.keep(found)
        return {"topics": topics, "leader_changes": leader_changes(found)}

    def _topic(self, name: str) -> dict[str, Any]:
        shown = self._asking.topic(name)
        seen = self._partitions.get(name, {})
        for each in shown["partitions"]:
            number = each["partition"]
            found = seen.get(number)
            led = found is not None and found.topic_id == shown["id"]
            each["live"] = partition_shown(number, found) if led and found is not None else None
            if each["live"] is not None:
                key = (name, number)
                each["live"]["records_per_s"], _ = self._rates.add(
                    key, time.monotonic(), each["live"]["log_end"], 0
                )
        return shown

    def _transactions(self) -> list[dict[str, Any]]:
        found, places = self._asking.list_transactions(), open_places(self._partitions)
        for each in found:
            each["places"] = places.get(each["number"], [])
            each["held_back"] = sum(place["held_back"] for place in each["places"])
        return found

    def _consumers(self) -> dict[str, Any]:
        found, now = self._asking.consumers(), time.monotonic()
        keys = set()
        for each in found["consumers"]:
            for at in each["partitions"]:
                if at["lag"] is None:
                    at["trend"] = None
                    continue
                key = (each["name"], each["kind"], at["topic"], at["topic_id"], at["partition"])
                keys.add(key)
                at["trend"] = self._window.add(key, LagSample(now, at["offset"], at["lag"]))
            each["trend"] = worst(at["trend"] for at in each["partitions"] if at["trend"])
        self._window.keep(keys)
        return found


class Rates:
    """How fast sums of topics and of partitions grow, over the last ten seconds.

    A key is a topic and a partition's number, or None for the whole topic.
    """

    def __init__(self) -> None:
        self._samples: dict[tuple[str, int | None], list[tuple[float, int, int]]] = {}

    def add(
        self, key: tuple[str, int | None], at_s: float, records: int, size: int
    ) -> tuple[float, float]:
        """Add the sums of now; return by how much both grow in a second, at least 0."""
        kept = self._samples.setdefault(key, [])
        kept.append((at_s, records, size))
        while len(kept) > 2 and kept[0][0] < at_s - _RATE_S:
            del kept[0]
        first_s, first_records, first_size = kept[0]
        span_s = at_s - first_s
        if span_s <= 0:
            return 0.0, 0.0
        return (
            round(max(0, records - first_records) / span_s, 1),
            round(max(0, size - first_size) / span_s, 1),
        )

    def keep(self, topics: Collection[str]) -> None:
        """Forget all other topics."""
        for key in list(self._samples):
            if key[0] not in topics:
                self._samples.pop(key, None)

"""The subscription of a consumer: named topics or a pattern, and chosen partitions."""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from numbers import Integral
from typing import Final, TypeVar

import pyarrow as pa

from spark_stream.client.reading.columns import View
from spark_stream.client.topics import Key, TopicsClient, matches
from spark_stream.errors import (
    InvalidOption,
    IsologError,
    SchemaMismatch,
    UnknownPartition,
    UnknownTopic,
)
from spark_stream.schema.schemas import is_default

SEARCH_S: Final = 2.0
"""The interval of the searches for new topics of a pattern."""

_OF_A_RECORD: Final = ("key", "value", "timestamp", "headers")

TopicSelection = str | re.Pattern[str] | Iterable[str]
"""A topic, topics, or a pattern that the whole name of a topic matches."""

T = TypeVar("T")


class Subscription:
    """The topics that a consumer reads, by name: their ids and their views.

    ``partitions``: only these of each topic, by default all, also later ones.

    Raises:
        InvalidOption: No topic or no partition is named, or an argument has the wrong type.
        UnknownTopic, UnknownPartition: A named topic does not exist, or lacks a chosen partition.
        SchemaMismatch, InvalidFilter: ``view`` raises it.
    """

    def __init__(
        self,
        topics: TopicsClient,
        selection: TopicSelection,
        partitions: Iterable[int] | None,
        view: Callable[[str, pa.Schema], View],
    ) -> None:
        self._topics = topics
        self._view = view
        self._partitions = None if partitions is None else _numbers(partitions)
        self._pattern = selection if isinstance(selection, re.Pattern) else None
        self._searched_at = time.monotonic()
        self._schemas: dict[str, pa.Schema] = {}
        self._added: list[Key] = []  # kept if there is an error, until they are returned
        self.ids: dict[str, str] = {}
        self.views: dict[str, View] = {}
        if isinstance(selection, re.Pattern):
            if partitions is not None or not isinstance(selection.pattern, str):
                raise InvalidOption(
                    "a pattern of topics is compiled from text, and takes no partitions=",
                    hint="Name the topics of which to read only some partitions.",
                )
            names = self._matching(selection)
        else:
            names = [selection] if isinstance(selection, str) else list(selection)
            if not names:
                raise InvalidOption(
                    "a consumer needs at least one topic",
                    hint='Such as log.consumer("orders"), or a list of names.',
                )
        for name in names:
            self._add(name)
        self._added.clear()

    def seconds_to_search(self) -> float:
        """Return the seconds until the next search for new topics, inf without a pattern."""
        if self._pattern is None:
            return math.inf
        return max(0.0, self._searched_at + SEARCH_S - time.monotonic())

    def find(self, *, now: bool = False) -> list[Key]:
        """Add new topics of the pattern, if it is time to search, or ``now``.

        Return their partitions.

        Raises:
            SchemaMismatch, InvalidFilter: The view does not fit a new topic.
            IsologError: With ``now`` also a retriable one. Without it the next search continues.
        """
        if self._pattern is None or (self.seconds_to_search() and not now):
            return []
        self._searched_at = time.monotonic()
        try:
            for name in self._matching(self._pattern):
                if name not in self.ids:
                    with suppress(UnknownTopic):  # it was just deleted
                        self._add(name)
        except IsologError as error:
            if now or not error.retriable:
                raise
        found, self._added = self._added, []
        return found

    def chosen(self, by_key: Mapping[Key, T]) -> dict[Key, T]:
        """Return the items of subscribed partitions."""
        return {
            key: value
            for key, value in by_key.items()
            if self._partitions is None or key[1] in self._partitions
        }

    def record_views(self, filter: str | None) -> Callable[[str], View]:
        """Return a function that gives the view of a topic's records.

        Raises:
            SchemaMismatch: A topic is typed. The returned function raises it for a topic that is
                added later.
        """

        @cache
        def view_of(topic: str) -> View:
            schema = self._schemas[topic]
            if not is_default(schema):
                raise SchemaMismatch(
                    f"topic {topic!r} is typed", topic=topic, hint="Use batches() for it."
                )
            view = View.of(topic, schema, _OF_A_RECORD, filter=filter)
            return dataclasses.replace(view, with_offsets=True)

        for topic in self._schemas:
            view_of(topic)
        return view_of

    def _matching(self, pattern: re.Pattern[str]) -> list[str]:
        return [name for name in self._topics.names(readable=True) if matches(pattern, name)]

    def _add(self, name: str) -> None:
        known = self._topics.describe(name)
        count = len(known.partitions)
        missing = sorted((self._partitions or frozenset()) - set(range(count)))
        if missing:
            raise UnknownPartition(
                f"topic {name!r} has partitions 0 to {count - 1}, not {missing[0]}",
                topic=name,
                partition=missing[0],
            )
        view = self._view(name, known.schema)
        self._schemas[name], self.views[name], self.ids[name] = known.schema, view, known.id
        self._added += [(name, number) for number in range(count)]


def _numbers(partitions: Iterable[int]) -> frozenset[int]:
    found = () if isinstance(partitions, str | Integral) else tuple(partitions)
    if not found or not all(_is_number(each) for each in found):
        raise InvalidOption(
            f"partitions takes a list of numbers from 0 on, not {partitions!r}",
            option="partitions",
            hint="Leave it out to read all partitions.",
        )
    return frozenset(map(int, found))


def _is_number(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0

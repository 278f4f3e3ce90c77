"""Many small ranges in one call to each leader.

It saves calls, and nothing depends on it: whatever keeps a range from being read to its end here
(its leader has changed, its records are gone, a broker is away) is found out, and dealt with or
told, when the range is read by itself (:mod:`spark_stream.client.reading.fetching`).
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.flight as fl
from msgspec import structs

from spark_stream.client.connecting.link import left
from spark_stream.client.connecting.routes import Route
from spark_stream.client.connecting.under_way import UNDER_WAY
from spark_stream.client.reading.fetching import (
    ALIGNED,
    Cancellation,
    Fetched,
    Source,
    moved_to,
    shown,
)
from spark_stream.errors import InvalidRequest, IsologError
from spark_stream.wire.fetch_messages import (
    ChunkFacts,
    EndFacts,
    FailureFacts,
    FetchMany,
    PlacesFacts,
    fetch_answer,
)
from spark_stream.wire.limits import FETCH_BYTES_DEFAULT

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The records ``[start, end)`` of a source."""

    source: Source
    start: int
    end: int


def fetch_many(wanted: Sequence[Wanted]) -> Iterator[tuple[int, Fetched]]:
    """Which range, and records of it, in their order; never raises because of a range or a broker.

    All sources have one router. Read on where the last ``next`` of each range says.
    """
    groups: dict[tuple[str, str, str], list[tuple[int, Route]]] = defaultdict(list)
    sent: dict[int, str] = {}  # by the view: most ranges share one
    for number, each in enumerate(wanted):
        try:
            route = each.source.route()
        except IsologError as error:
            logger.debug("a range is left to be read by itself: %s", error)
            continue
        view = each.source.view
        if id(view) not in sent:
            sent[id(view)] = str([view.field(name) for name in view.asked])
        groups[route.leader, route.address, sent[id(view)]].append((number, route))
    for group in groups.values():
        yield from _fetch(wanted, group)


def _fetch(
    wanted: Sequence[Wanted], group: Sequence[tuple[int, Route]]
) -> Iterator[tuple[int, Fetched]]:
    """The ranges of a group, which have one leader, in one call."""
    source, (_, route) = wanted[group[0][0]].source, group[0]
    router, under_way = source.router, Cancellation()
    asked = FetchMany(
        fetches=[
            structs.replace(
                each.source.fetch(each.start, each.end, 0, FETCH_BYTES_DEFAULT),
                leader_epoch=known.epoch,
            )
            for each, known in ((wanted[number], known) for number, known in group)
        ]
    )
    try:
        link = router.link(route)
        client = link.client(left(time.monotonic() + router.timeout_s))
    except IsologError as error:
        logger.debug("ranges are left to be read by themselves: %s", error)
        return
    watched = router.watch(lambda: route, 0, lambda: under_way.leave(link, client))
    try:
        with UNDER_WAY:
            options = fl.FlightCallOptions(timeout=router.timeout_s, read_options=ALIGNED)
            reader = client.do_get(fl.Ticket(asked.to_bytes()), options)
        under_way.begin(reader)
        while True:
            try:
                with UNDER_WAY:
                    chunk = reader.read_chunk()
            except StopIteration:
                return
            facts = fetch_answer(chunk.app_metadata)
            if isinstance(facts, PlacesFacts) or facts.fetch is None:
                raise InvalidRequest("an answer does not say which range it is about")
            number = group[facts.fetch][0]
            watched.rest()
            match facts:
                case FailureFacts():
                    logger.debug("a range is left to be read by itself: %s", facts.error)
                case EndFacts():
                    yield number, moved_to(wanted[number].source, facts.next)
                case ChunkFacts():
                    yield number, shown(wanted[number].source, chunk.data, facts)
            watched.wake()
    except (fl.FlightError, pa.ArrowException, OSError) as error:
        logger.debug("ranges are left to be read by themselves: %s", link.translated(error, client))
    finally:
        watched.end()
        under_way.end()

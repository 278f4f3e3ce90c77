"""A query under its ``consumer`` name: its first start is pinned, its progress is written down.

What is pinned is a streaming offset, as in a checkpoint. A query that starts anew under the name
begins there, and losses since then are reported as for a checkpoint (``losses``). Progress is only
for people who watch: no query reads it, and a failure to write it down never fails a query.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable
from typing import Final

from msgspec import structs

from spark_stream.consistency.transactions.transactions import ReadPosition
from spark_stream.datasource.options.places import shown
from spark_stream.datasource.reading.planning import Planner
from spark_stream.datasource.values.offsets import Offsets, TopicOffsets
from spark_stream.errors import ConsumerFenced, InvalidOption, IsologError
from spark_stream.wire.consumer_messages import PinStart, RecordProgress

logger = logging.getLogger(__name__)

_PATIENCE_S: Final = 2.0
"""How long a micro-batch may wait for its progress to be written down."""

_PAUSE_S: Final = 30.0
"""For how long nothing is written down after a failure."""


class NamedQuery:
    """One run of a query that has the name ``consumer``."""

    def __init__(self, planner: Planner, name: str) -> None:
        self._planner = planner
        self._name = name
        self._instance = uuid.uuid4().hex
        self._claimed = False  # whether this run has the name
        self._told = False  # whether a failure was logged
        self._quiet_until = 0.0
        self._last: Offsets | None = None

    def pinned_start(self, first: Callable[[], Offsets]) -> dict[str, TopicOffsets]:
        """Return where the query first started; ``first`` is called if no start is recorded.

        Raises:
            InvalidOption: the name is that of a query that reads other topics.
        """
        options = self._planner.options
        starting = f"{options.starting.option}={shown(options.starting.place)}"
        asked = PinStart.of(
            consumer=self._name,
            instance=self._instance,
            selection=str(options.selection),
            isolation=options.isolation,
            starting=starting,
        )
        consumers = self._planner.consumers
        known = consumers.pin_start(asked)
        if known.start is None and known.selection == asked.selection:
            start = json.dumps(self._planner.logged(first()))
            known = consumers.pin_start(structs.replace(asked, start=start))
        if known.selection != asked.selection:
            raise InvalidOption(
                f"consumer {self._name!r} is the name of a query that reads"
                f" {known.selection or 'other topics'}, and this one reads {asked.selection}",
                option="consumer",
                hint="Give this query a name of its own. If it is the same query with other topics,"
                f" forget its start: isolog consumers delete {self._name}",
            )
        assert known.start is not None
        self._claimed = True
        if known.starting != starting:
            logger.warning(
                "consumer %r goes on from where it first started (%s); %s does not count. To start"
                " elsewhere, forget that: isolog consumers delete %s",
                self._name,
                known.starting,
                starting,
                self._name,
            )
        return self._planner.read_back(json.loads(known.start))

    def tell(self, read: Offsets) -> None:
        """Record that everything below these offsets is read."""
        if read == self._last or time.monotonic() < self._quiet_until:
            return
        self._last = read
        options = self._planner.options
        try:
            asked = RecordProgress.of(
                consumer=self._name,
                instance=self._instance,
                selection=str(options.selection),
                isolation=options.isolation,
                positions=[
                    ReadPosition(topic=name, topic_id=topic.id, partition=number, offset=offset)
                    for name, topic in sorted(read.items())
                    for number, offset in sorted(topic.offsets.items())
                ],
                claim=not self._claimed,
            )
            self._planner.consumers.record_progress(asked, _PATIENCE_S)
            self._claimed = True
        except ConsumerFenced:
            self._quiet_until = float("inf")
            logger.warning(
                "another query has started under the name %r: isolog consumers shows that one from"
                " now on; this one goes on",
                self._name,
            )
        except IsologError as error:
            self._quiet_until = time.monotonic() + _PAUSE_S
            if not self._told:
                self._told = True
                logger.warning(
                    "the progress of consumer %r could not be written down, and the query goes on"
                    " without: %s",
                    self._name,
                    error.message,
                )

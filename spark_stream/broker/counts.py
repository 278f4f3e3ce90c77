"""All that a broker counts while it works; what can be read from its state is not counted."""

from __future__ import annotations

from spark_stream.consistency.isolation import PRODUCER_LEVELS
from spark_stream.counting import Histogram, NamedCounts, TrafficBook
from spark_stream.wire.calls import CALLS

SHRINK, EXPAND = "shrink", "expand"
CLEAN, UNCLEAN = "clean", "unclean"


class BrokerCounts:
    """The counts of one broker, from its start on."""

    def __init__(self) -> None:
        self.traffic = TrafficBook()
        self.appends = {level: Histogram() for level in PRODUCER_LEVELS}
        """From when a batch was decoded until it is answered, by the producer's isolation."""
        self.fetches = Histogram()
        """What a fetch spends on reading the log, without its waits."""
        self.actions = {name: Histogram() for name in CALLS}
        self.forces = Histogram()
        self.store_reads = Histogram()
        self.store_writes = Histogram()
        self.store_errors = NamedCounts("read", "write")
        self.refused = NamedCounts()
        """By the code of the error that a client got."""
        self.isr_changes = NamedCounts(SHRINK, EXPAND)
        self.lost_members = NamedCounts()
        """Of groups, by the group's name: members that this broker removed without a leave."""
        self.elections = NamedCounts(CLEAN, UNCLEAN)

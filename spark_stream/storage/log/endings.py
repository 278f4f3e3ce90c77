"""Which batches of a log are aborted: kept up entry by entry, or derived from the whole log."""

from __future__ import annotations

from collections.abc import Sequence

from spark_stream.consistency.entries import Entry, Kind, aborted_rows, open_transactions
from spark_stream.consistency.ids import NO_TRANSACTION
from spark_stream.storage.segment.segment import Segment


class Endings:
    """What is known of the ends of transactions in one log. One caller at a time (the writer)."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.derive(segments)

    def derive(self, segments: Sequence[Segment]) -> None:
        """Derive everything anew from these segments, which are the whole log."""
        tables = [segment.table for segment in segments]
        for segment, mask in zip(segments, aborted_rows(tables), strict=True):
            segment.set_aborted(mask)
        # (transaction, producer id) without a marker -> the index of its first entry
        self._open = open_transactions(tables)

    def on_appended(self, entry: Entry, segments: Sequence[Segment]) -> None:
        """Take note of an appended entry; later entries of these segments come in later calls."""
        if entry.transaction == NO_TRANSACTION:
            return
        pair = (entry.transaction, entry.producer_id)
        if entry.kind is Kind.DATA:
            self._open.setdefault(pair, entry.entry_index)
            return
        first = self._open.pop(pair, None)
        if entry.kind is Kind.ABORT and first is not None:
            for segment in reversed(segments):
                segment.abort(*pair, first)
                if segment.first.entry <= first:
                    break

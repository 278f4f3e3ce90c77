"""The sessions of a leader's followers, as the replica's shell keeps them.

They hold the followers that get news, and the last batches, which stay in memory while there is
a follower to give them to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from spark_stream.broker.partition.recent import Recent
from spark_stream.consistency.entries import Entry
from spark_stream.storage.format.message import EncodedBatch

News = Callable[[bool], None]
"""Tells a follower's stream that there are entries, or (False) only a new high watermark."""


class Sessions:
    """A replica's sessions, by number. The caller holds the replica's lock."""

    def __init__(self, recent: Recent) -> None:
        self.recent = recent
        self._news: dict[int, News] = {}

    def __contains__(self, session: int) -> bool:
        return session in self._news

    def start(self, session: int, news: News) -> None:
        """Start a follower's session."""
        self._news[session] = news

    def keep(self, sessions: Collection[int]) -> None:
        """End all other sessions: their followers ask for new ones."""
        if not self._news:
            return  # every append comes here, and most partitions have no followers
        for session in [each for each in self._news if each not in sessions]:
            self._news.pop(session)(True)  # the stream looks, and finds its session over
        self._let_go()

    def end(self, session: int) -> bool:
        """End a follower's session; return False if it had ended before."""
        known = self._news.pop(session, None) is not None
        self._let_go()
        return known

    def end_all(self) -> None:
        """End all sessions: the followers look for another leader."""
        self.keep(())

    def _let_go(self) -> None:
        if not self._news:
            self.recent.clear()

    def give_batch(self, entry: Entry, message: EncodedBatch) -> None:
        """Keep the batch of an entry that was appended."""
        if self._news:
            self.recent.keep(entry, message)
            self.give_news()

    def give_news(self, *, entries: bool = True) -> None:
        """Tell all that there are entries, or (False) only that the high watermark has moved."""
        for news in self._news.values():
            news(entries)

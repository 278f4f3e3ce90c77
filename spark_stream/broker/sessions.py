"""The sessions of a leader's followers, as the replica's shell keeps them.

Who is told of news, and the last batches, which are kept in memory while there is anyone to give
them to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from spark_stream.broker.recent import Recent
from spark_stream.consistency.entries import Entry
from spark_stream.consistency.ids import BrokerId

News = Callable[[bool], None]
"""Tells a follower's stream of news: of entries, or (False) only of the high watermark."""


@dataclass(frozen=True, slots=True)
class _Follower:
    broker: BrokerId
    news: News


class Sessions:
    """By their numbers. The caller holds the replica's lock."""

    def __init__(self, recent: Recent) -> None:
        self.recent = recent
        self._followers: dict[int, _Follower] = {}

    def __contains__(self, session: int) -> bool:
        return session in self._followers

    def start(self, session: int, broker: BrokerId, news: News) -> None:
        """The follower's session; the one that it had before ends."""
        for number, each in list(self._followers.items()):
            if each.broker == broker:
                self._tell_end(number)
        self._followers[session] = _Follower(broker, news)

    def end(self, session: int) -> bool:
        """The follower is gone; False: the session had ended before."""
        known = self._followers.pop(session, None) is not None
        self._let_go()
        return known

    def end_all(self) -> None:
        """The followers are told so: they find another leader."""
        for session in list(self._followers):
            self._tell_end(session)

    def _tell_end(self, session: int) -> None:
        """The follower's stream has news: it looks, and finds that the session is over."""
        self._followers.pop(session).news(True)
        self._let_go()

    def _let_go(self) -> None:
        if not self._followers:
            self.recent.clear()

    def give_batch(self, entry: Entry, message: pa.Buffer) -> None:
        """The entry was appended, with this batch."""
        if self._followers:
            self.recent.keep(entry, message)
            self.give_news()

    def give_news(self, *, entries: bool = True) -> None:
        """There are entries, or only (False) the high watermark has moved."""
        for each in self._followers.values():
            each.news(entries)

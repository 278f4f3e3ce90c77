"""The sessions of a leader's followers, as the replica's shell keeps them: who is told of news."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spark_stream.consistency.ids import BrokerId

News = Callable[[bool], None]
"""Tells a follower's stream of news: of entries, or (False) only of the high watermark."""


@dataclass(frozen=True, slots=True)
class _Follower:
    broker: BrokerId
    news: News


class Sessions:
    """By their numbers. The caller holds the replica's lock."""

    def __init__(self) -> None:
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
        return self._followers.pop(session, None) is not None

    def end_all(self) -> None:
        """The followers are told so: they find another leader."""
        for session in list(self._followers):
            self._tell_end(session)

    def _tell_end(self, session: int) -> None:
        """The follower's stream has news: it looks, and finds that the session is over."""
        self._followers.pop(session).news(True)

    def give_news(self, *, entries: bool = True) -> None:
        """There are entries, or only (False) the high watermark has moved."""
        for each in self._followers.values():
            each.news(entries)

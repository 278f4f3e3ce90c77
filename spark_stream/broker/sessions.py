"""The sessions of a leader's followers, as the replica's shell keeps them: who is told of news."""

from __future__ import annotations

from collections.abc import Callable, Collection

News = Callable[[bool], None]
"""Tells a follower's stream of news: of entries, or (False) only of the high watermark."""


class Sessions:
    """By their numbers. The caller holds the replica's lock."""

    def __init__(self) -> None:
        self._news: dict[int, News] = {}

    def __contains__(self, session: int) -> bool:
        return session in self._news

    def start(self, session: int, news: News) -> None:
        """A follower's session."""
        self._news[session] = news

    def keep(self, sessions: Collection[int]) -> None:
        """All others are over: their followers are told so, and ask for new ones."""
        for session in [each for each in self._news if each not in sessions]:
            self._news.pop(session)(True)  # it looks, and finds that its session is over

    def end(self, session: int) -> bool:
        """The follower is gone; False: the session had ended before."""
        return self._news.pop(session, None) is not None

    def end_all(self) -> None:
        """The followers are told so: they find another leader."""
        self.keep(())

    def give_news(self, *, entries: bool = True) -> None:
        """There are entries, or only (False) the high watermark has moved."""
        for each in self._news.values():
            each(entries)

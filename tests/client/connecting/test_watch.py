"""Calls that wait for silent brokers are ended when their leader was replaced, and only then."""

from __future__ import annotations

import threading

from spark_stream.client.connecting.routes import Route
from spark_stream.client.connecting.watch import Watch
from spark_stream.errors import BrokerUnavailable
from tests.support import eventually

ROUTE = Route("t", "id", 0, "a", "a:1", 1)
OTHER = Route("u", "other", 0, "a", "a:1", 1)


class News:
    """Counts the questions; says which routes were replaced."""

    def __init__(self, *replaced: Route) -> None:
        self.asked: list[str] = []
        self._replaced = replaced

    def refresh(self, topic: str, topic_id: str, timeout_s: float) -> None:
        self.asked.append(topic)
        if topic == OTHER.topic:
            raise BrokerUnavailable("nobody knows of this one")

    def replaced(self, route: Route) -> bool:
        return route in self._replaced


def new_watch(news: News) -> Watch:
    return Watch(news, tick_s=0.01, silence_s=0.02)


def test_a_silent_call_ends_when_its_leader_was_replaced():
    moved = threading.Event()
    news = News(ROUTE)
    call = new_watch(news).begin(lambda: ROUTE, 0.0, moved.set)
    assert moved.wait(10)
    call.end()
    assert set(news.asked) == {"t"}


def test_a_silent_call_goes_on_while_its_leader_leads():
    moved = threading.Event()
    news = News()
    call = new_watch(news).begin(lambda: ROUTE, 0.0, moved.set)
    eventually(lambda: len(news.asked) > 1)
    call.end()
    assert not moved.is_set()


def test_nobody_is_asked_for_calls_that_owe_nothing():
    """One has its answer, one owes none, one may well be silent for longer; the last is silent."""
    news = News(ROUTE)
    watch = new_watch(news)
    moved = threading.Event()
    answered = watch.begin(lambda: ROUTE, 0.0, moved.set)
    answered.rest()
    calls = [
        answered,
        watch.begin(lambda: None, 0.0, moved.set),
        watch.begin(lambda: ROUTE, 60.0, moved.set),
        watch.begin(lambda: OTHER, 0.0, moved.set),
    ]
    eventually(lambda: len(news.asked) > 1)
    for call in calls:
        call.end()
    assert set(news.asked) == {"u"}
    assert not moved.is_set()


def test_the_thread_ends_with_its_last_call_and_begins_again():
    def watchers() -> int:
        return sum(each.name == "isolog-leaders" for each in threading.enumerate())

    watch = new_watch(News())
    for _ in range(2):
        call = watch.begin(lambda: ROUTE, 60.0, lambda: None)
        assert watchers()
        call.end()
        eventually(lambda: not watchers())

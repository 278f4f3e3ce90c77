"""A broker's topics without the broker: a directory, a store that fails on demand, a desk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_stream.broker.host.hosted_topic import HostedTopic
from spark_stream.cluster.stores.sqlite import SqliteStore
from spark_stream.environment import Clock
from spark_stream.scripts.steps import RemoteStep
from spark_stream.storage.logs import FileLogs
from tests.broker.local_broker import LocalBroker, Surroundings, to_alter, to_create
from tests.clocks import FakeClock


class Died(Exception):
    """The broker ended here."""


class FailingStore(SqliteStore):
    """A store in whose changes of topics something happens: before they are made, or after."""

    fails: Exception | None = None
    when = "before"
    meanwhile: Callable[[], None] | None = None

    def put(self, key: str, value: Mapping[str, Any], expected: int) -> int | None:
        known = self.get(key)
        changes = key.startswith("topics/") and (known is None or known.value != value)
        if changes and self.meanwhile is not None:
            act, self.meanwhile = self.meanwhile, None
            act()
        failing = self.fails is not None and changes
        if failing and self.when == "before":
            assert self.fails is not None
            raise self.fails
        done = super().put(key, value, expected)
        if failing:
            assert self.fails is not None
            raise self.fails
        return done

    def delete(self, key: str, expected: int) -> bool:
        done = super().delete(key, expected)
        if self.fails is not None and key.startswith("topics/"):
            raise self.fails
        return done


class NoPeers:
    """The other brokers of a broker that is alone."""

    def run_steps(self, broker_id: str, steps: Sequence[RemoteStep]) -> list[Any]:
        raise AssertionError(f"{len(steps)} steps for {broker_id}")


class LocalTopics:
    """The topics of one broker, which is alone in its cluster."""

    def __init__(
        self, path: Path, logs: FileLogs | None = None, clock: Clock | None = None
    ) -> None:
        """``clock``: by default one that stands, so that the lease lasts on a busy machine."""
        self.store = FailingStore(path / "metadata.sqlite")
        around = Surroundings(path, clock or FakeClock())
        self._broker = LocalBroker(
            around, "broker", "logs", logs=logs, store=self.store, folder=path
        )
        self.host, self.transactions = self._broker.host, self._broker.topics
        self.left_over = self._broker.left_over
        self.delete = self.transactions.delete
        self.topic = self.host.topic

    def create(self, *asked: Any, token: str = "") -> HostedTopic:
        return self.transactions.create(to_create(*asked, token=token))

    def alter(self, *asked: Any) -> HostedTopic:
        return self.transactions.alter(to_alter(*asked))

    def close(self) -> None:
        self.host.close()
        self.store.close()

"""The views of a cluster side by side: status, metrics, console, top, and describe of each topic.

All of them are asked through one broker. They are views of one function, so they agree, apart from
a change between two of the questions: those who compare them repeat that for a while.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from contextlib import closing, suppress

from msgspec import Struct

import spark_stream as isolog
from spark_stream.cli.operating.frames import frame_of
from spark_stream.cli.operating.top import look_at
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.console.asking import Asking
from spark_stream.errors import IsologError
from spark_stream.testing import LocalCluster
from spark_stream.testing.local_cluster import LocalBroker
from tests.broker.metrics.scraping import Samples, scraped

_ANSWER_S = 10.0
_PAUSE_S = 0.2


class View(Struct, frozen=True):
    """A view; None where it does not show something."""

    alive: int
    without_leader: int | None = None
    controller: str | None = None
    problems: tuple[str, ...] | None = None
    store: bool | None = None


def metrics_of(broker: LocalBroker) -> Samples:
    """A scrape of the broker."""
    facts = json.loads((broker.directory / "broker.json").read_text())
    return scraped(facts["metrics_address"], "/metrics")


def views_of(broker: LocalBroker) -> dict[str, View]:
    """Every view of the cluster through this broker.

    Raises:
        IsologError, OSError: it does not answer, or answers nobody while it is cut off.
    """
    with closing(ClusterConnection(broker.address, timeout_s=_ANSWER_S)) as connection:
        shown = Asking(connection).cluster()
    with isolog.connect(broker.address, timeout=_ANSWER_S) as log:
        status, topics = log.cluster(), [log.describe(name) for name in log.topics()]
        frame = frame_of([look_at(log)])
    metrics = metrics_of(broker)
    leaderless = sum(each.leader is None for topic in topics for each in topic.partitions)
    words = [each.message for each in status.problems]
    named = {each.id for each in frame.brokers if "controller" in each.state}
    return {
        "status": View(
            sum(each.alive for each in status.brokers),
            status.without_leader,
            status.controller,
            tuple(words),
            not any(each.kind.startswith("metadata") for each in status.problems),
        ),
        "metrics": View(
            int(metrics("isolog_brokers_alive")),
            int(metrics("isolog_partitions_without_leader")),
            store=metrics("isolog_store_reachable") == 1,
        ),
        "console": View(
            sum(each["alive"] for each in shown["brokers"]),
            shown["without_leader"],
            shown["controller"],
            tuple(each["message"] for each in shown["problems"]),
        ),
        "top": View(
            frame.brokers_alive, None, next(iter(named), None), problems=tuple(frame.problems)
        ),
        "describe": View(sum(each.alive for each in status.brokers), leaderless),
    }


def differences(views: dict[str, View]) -> list[str]:
    """What a view shows that the status does not."""
    status = views["status"]
    found = []
    for name, view in views.items():
        fields = {"alive", "without_leader", "problems", "store"}
        if name in ("console", "top"):
            fields.add("controller")
        for each in fields:
            mine, theirs = getattr(status, each), getattr(view, each)
            if theirs is None and each != "controller":
                continue
            if mine != theirs:
                found.append(f"{name}: {each} is {theirs}, and the status has {mine}")
    return found


def disagreements(
    cluster: LocalCluster, within_s: float, paused: Collection[int] = ()
) -> list[str]:
    """Compare the views through each broker that answers; what still differs after this time.

    ``paused``: brokers that cannot answer.
    """
    until = time.monotonic() + within_s
    while True:
        found: list[str] = []
        for number, broker in cluster.brokers.items():
            if broker.alive and number not in paused:
                with suppress(IsologError, OSError):
                    views = views_of(broker)
                    found += [f"broker {number}: {each}" for each in differences(views)]
        if not found or time.monotonic() > until:
            return found
        time.sleep(_PAUSE_S)

"""The views of a cluster: status, metrics, console, top, and describe of each topic.

All views are read through one broker. They show the same state, except for a change between two
reads. A comparison is therefore repeated for a while.
"""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from msgspec import Struct

from isolog.errors import BrokerUnavailable, IsologError
from isolog.testing import LocalCluster
from spark_stream.cli.operating.top import sample_cluster
from spark_stream.cli.operating.top_frames import frame_of
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.log import Log
from spark_stream.console.client import ConsoleClient
from spark_stream.testing.local_cluster import LocalBroker
from spark_stream.wire.addresses import joined, split_address
from tests.broker.metrics.scraping import Samples, scraped

ANYWHERE = "0.0.0.0:0"
"""The setting ``metrics_listen`` of brokers on several hosts."""
_ANSWER_S = 5.0
_PAUSE_S = 0.2


class View(Struct, frozen=True):
    """A view. A field is None if the view does not show it. ``controller`` "" means none."""

    alive: int
    without_leader: int | None = None
    controller: str | None = None
    problems: tuple[str, ...] | None = None
    store: bool | None = None


class Views(Struct, frozen=True):
    """All views through one broker by name, and the ids of the brokers shown as alive."""

    by_name: dict[str, View]
    alive: frozenset[str]

    @property
    def status(self) -> View:
        return self.by_name["status"]

    def differences(self) -> list[str]:
        """Return the facts that differ from the status."""
        return [
            f"{name}: {field} is {theirs}, and the status has {mine}"
            for name, view in self.by_name.items()
            for field in view.__struct_fields__
            if (theirs := getattr(view, field)) is not None
            and _steady(theirs) != _steady(mine := getattr(self.status, field))
        ]


def _steady(shown: object) -> object:
    """Return the value without the store's text, whose etcd member changes with each attempt."""
    if not isinstance(shown, tuple):
        return shown
    return [re.sub(r"cannot be used \(.*", "cannot be used", each) for each in shown]


def metrics_of(broker: LocalBroker) -> Samples:
    """Scrape the metrics of the broker."""
    facts = json.loads((broker.directory / "broker.json").read_text())
    _, port = split_address(facts["metrics_address"])
    host, _ = split_address(broker.address)
    return scraped(joined(host, port), "/metrics")


def views_of(broker: LocalBroker) -> Views:
    """Read every view of the cluster through this broker.

    Raises:
        IsologError, OSError: it does not answer, or it refuses to answer while it is cut off.
    """
    with closing(ClusterConnection(broker.address, timeout_s=_ANSWER_S)) as connection:
        log = Log(connection)
        status = log.cluster()
        topics = [log.describe(name) for name in log.topics()]
        shown = ConsoleClient(connection).cluster()
        frame = frame_of([sample_cluster(log)])
        metrics = metrics_of(broker)
        if connection.address != broker.address:
            raise BrokerUnavailable(f"broker {broker.number} sent the client to another one")
    named = [each.id for each in frame.brokers if "controller" in each.state]
    found = {
        "top": View(frame.brokers_alive, controller="".join(named), problems=tuple(frame.problems)),
        "status": View(
            sum(each.alive for each in status.brokers),
            status.without_leader,
            status.controller or "",
            tuple(each.message for each in status.problems),
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
            shown["controller"] or "",
            tuple(each["message"] for each in shown["problems"]),
        ),
        "describe": View(
            sum(each.alive for each in status.brokers),
            sum(each.leader is None for topic in topics for each in topic.partitions),
        ),
    }
    return Views(found, frozenset(each.id for each in status.brokers if each.alive))


def disagreements(cluster: LocalCluster, within_s: float) -> tuple[int, list[str]]:
    """Compare the views through each broker that answers.

    Return the number of these brokers, and the differences that remain after ``within_s``: between
    views, or between a view and a broker whose process has ended.
    """
    until = time.monotonic() + within_s
    with ThreadPoolExecutor(len(cluster.brokers)) as readers:
        while True:
            ended = {each.id for each in cluster.brokers.values() if not each.alive}
            running = [each for each in cluster.brokers.values() if each.alive]
            answers = {
                broker.number: views
                for broker, views in zip(running, readers.map(_views_or_none, running), strict=True)
                if views is not None
            }
            found = [
                f"broker {number}: {each}"
                for number, views in answers.items()
                for each in (
                    *views.differences(),
                    *(f"broker {each} has ended, and is alive" for each in views.alive & ended),
                )
            ]
            if not found or time.monotonic() > until:
                return len(answers), found
            time.sleep(_PAUSE_S)


def _views_or_none(broker: LocalBroker) -> Views | None:
    try:
        return views_of(broker)
    except (IsologError, OSError):
        return None

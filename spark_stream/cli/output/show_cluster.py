"""The cluster, for people as a table and for programs as JSON."""

from __future__ import annotations

import json

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from spark_stream.cli.options import Listing
from spark_stream.cli.output.show import console
from spark_stream.cli.texts import as_json
from spark_stream.wire.cluster_messages import BrokerDescription, ClusterDescription


def show_cluster(
    cluster: ClusterDescription, shape: Listing, screen: Console | None = None
) -> None:
    """Print a cluster with its brokers and its problems."""
    if shape is Listing.JSON:
        print(json.dumps(as_json(cluster), indent=2))
        return
    screen = screen or console()
    alive = sum(each.alive for each in cluster.brokers)
    screen.print(f"cluster {cluster.cluster_id}")
    screen.print(
        f"brokers {alive} of {len(cluster.brokers)} alive"
        f"  topics {cluster.topics}  partitions {cluster.partitions}"
    )
    screen.print(_brokers_table(cluster))
    screen.print()
    for each in cluster.problems:
        screen.print(escape(each.message), soft_wrap=True)  # one line, for grep
    if cluster.moving:
        screen.print(f"partitions on their way to other brokers: {cluster.moving}")


def _brokers_table(cluster: ClusterDescription) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    for text in ("broker", "address", "rack", "state"):
        table.add_column(text, overflow="fold")
    for number in ("leads", "replicas", "in sync"):
        table.add_column(number, justify="right")
    for each in cluster.brokers:
        table.add_row(
            escape(each.id),
            escape(each.address),
            escape(each.rack or ""),
            _state(each, cluster.controller),
            str(each.leaders),
            str(each.replicas),
            str(each.in_sync),
        )
    return table


def _state(broker: BrokerDescription, controller: str | None) -> str:
    words = ["alive" if broker.alive else "dead"]
    if broker.state != "active":
        words.append(broker.state)
    if broker.id == controller:
        words.append("controller")
    return ", ".join(words)

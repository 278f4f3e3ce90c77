"""``isolog consumers``: list, describe, delete.

For a consumer's name the store keeps the position of a client's named consumer, and where a Spark
query with the option ``consumer`` first started and how far it has come.
"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from spark_stream.cli.options import (
    Bootstrap,
    Listing,
    LogPath,
    Output,
    Yes,
    confirm,
    log,
    note,
)
from spark_stream.cli.output.show_consumers import show_consumer, show_consumers
from spark_stream.wire.consumer_messages import ConsumerDescription

app = typer.Typer(no_args_is_help=True, help="List, describe and forget consumers' names.")

ConsumerName = Annotated[
    str, typer.Argument(metavar="NAME", help="A consumer's name.", show_default=False)
]


@app.command("list")
def list_consumers(
    bootstrap: Bootstrap = None, path: LogPath = None, output: Output = Listing.TABLE
) -> None:
    """List consumers by name: clients', and Spark queries with the option "consumer".

    \b
    isolog consumers list --path data/
    isolog consumers list --output json | jq '.[] | select(.lag > 1000) | .name'
    """
    with log(bootstrap, path) as opened:
        found = opened.consumers()
    show_consumers(found, _now_ms(), output)


@app.command()
def describe(
    name: ConsumerName,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    output: Output = Listing.TABLE,
) -> None:
    """Show the position of a consumer in each partition, and how much is left to read.

    A query's lag is counted under its isolation level, a client's up to the ends of the logs.

    \b
    isolog consumers describe departures --path data/
    """
    with log(bootstrap, path) as opened:
        found = opened.describe_consumer(name)
    show_consumer(found, _now_ms(), output)


@app.command()
def delete(
    name: ConsumerName,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    yes: Yes = False,
) -> None:
    """Forget a name: a query's pinned start, or the positions of a client's consumer.

    A query that later starts under the name with a new checkpoint starts where its options say. A
    running query continues, and is listed again with its next records. A client's running consumer
    loses its name, and gets an error.

    \b
    isolog consumers delete departures --path data/ --yes
    """
    with log(bootstrap, path) as opened:
        what = " and ".join(map(_known, opened.describe_consumer(name)))
        confirm(yes, f"Forget of consumer {name} {what}?", "forget it")
        opened.delete_consumer(name)
    note(f"forgot consumer {name}")


def _known(consumer: ConsumerDescription) -> str:
    if consumer.kind == "query":
        return "where a query first started and how far it has come"
    return "where a client goes on"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

"""``isolog cluster``: status, decommission, recommission."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from spark_stream.cli.options import Bootstrap, Listing, LogPath, Output, counted, log, note
from spark_stream.cli.output.show_cluster import show_cluster
from spark_stream.errors import InvalidOption

app = typer.Typer(no_args_is_help=True, help="Look at a cluster, and take brokers out of it.")


@app.command()
def status(
    bootstrap: Bootstrap = None, path: LogPath = None, output: Output = Listing.TABLE
) -> None:
    """Show the brokers, which of them are alive, and what is amiss. Exit code 1 if anything is.

    \b
    isolog cluster status --bootstrap localhost:9092
    isolog cluster status --output json | jq .problems
    """
    with log(bootstrap, path) as opened:
        found = opened.cluster()
    show_cluster(found, output)
    if found.problems:
        raise typer.Exit(1)


@app.command()
def decommission(
    broker: Annotated[str, typer.Argument(metavar="BROKER", help="The broker's id.")],
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Takes a broker out of the cluster: its replicas move to other brokers.

    The broker may be dead. One that lives goes on serving until its replicas are in sync elsewhere;
    `isolog cluster status` shows it until then, and stop it after that.

    \b
    isolog cluster decommission 3 --bootstrap localhost:9092
    """
    with log(bootstrap, path) as opened:
        found = next((each for each in opened.cluster().brokers if each.id == broker), None)
        if found is not None and not yes:
            replicas = counted(found.replicas, "replica")
            if not sys.stdin.isatty():
                raise InvalidOption(
                    f"broker {broker} has {replicas}: no terminal to ask on",
                    hint="Give --yes to take it out.",
                )
            typer.confirm(
                f"Move {replicas} of broker {broker} away?",
                abort=True,
                err=True,
            )
        opened.decommission(broker)
    note(f"broker {broker} leaves: `isolog cluster status` shows it until its replicas have moved")


@app.command()
def recommission(
    broker: Annotated[str, typer.Argument(metavar="BROKER", help="The broker's id.")],
    bootstrap: Bootstrap = None,
    path: LogPath = None,
) -> None:
    """Lets a broker stay that was to leave, and gives it replicas again.

    Replicas that have begun to move go on; `isolog topic cancel-moves` keeps those of a topic.

    \b
    isolog cluster recommission 3 --bootstrap localhost:9092
    """
    with log(bootstrap, path) as opened:
        opened.recommission(broker)
    note(f"broker {broker} stays")

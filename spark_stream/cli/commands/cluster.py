"""``isolog cluster``: status, decommission, recommission, backup, restore, migrate-metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from spark_stream.cli.options import (
    Bootstrap,
    BrokerConf,
    Listing,
    LogPath,
    Output,
    Yes,
    confirm,
    connection,
    counted,
    log,
    metadata_backend,
    note,
    where,
)
from spark_stream.cli.output.texts import as_json, broker_state, cell, console, plain_table
from spark_stream.errors import InvalidOption

if TYPE_CHECKING:
    from spark_stream.cluster.stores.backends import EtcdPlace
    from spark_stream.wire.cluster_messages import BrokerStatus, ClusterDescription


def show_cluster(
    cluster: ClusterDescription,
    statuses: Mapping[str, BrokerStatus],
    shape: Listing,
    screen: Console | None = None,
) -> None:
    """Print a cluster with its brokers, its problems, and the delays by quotas."""
    if shape is Listing.JSON:
        principals = {broker: each.principals for broker, each in statuses.items()}
        print(json.dumps(as_json(cluster) | {"principals": as_json(principals)}, indent=2))
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
        screen.print(cell(each.message), soft_wrap=True)  # one line, for grep
    if cluster.moving:
        screen.print(f"partitions that move to other brokers: {cluster.moving}")
    for broker, status in statuses.items():
        for name, use in status.principals.items():
            if use.write_delayed_s or use.read_delayed_s:
                screen.print(
                    f"delays by the quota of {cell(name)} at broker {cell(broker)}:"
                    f" writes {use.write_delayed_s:.1f} s, reads {use.read_delayed_s:.1f} s,"
                    f" connections {use.connections}",
                    soft_wrap=True,
                )


def _brokers_table(cluster: ClusterDescription) -> Table:
    table = plain_table()
    for text in ("broker", "address", "rack", "state"):
        table.add_column(text, overflow="fold")
    for number in ("leads", "replicas", "in sync"):
        table.add_column(number, justify="right")
    for each in cluster.brokers:
        table.add_row(
            cell(each.id),
            cell(each.address),
            cell(each.rack or ""),
            broker_state(each, cluster.controller),
            str(each.leaders),
            str(each.replicas),
            str(each.in_sync),
        )
    return table


app = typer.Typer(
    no_args_is_help=True, help="Inspect a cluster, remove brokers, and back up its metadata."
)


@app.command()
def status(
    bootstrap: Bootstrap = None, path: LogPath = None, output: Output = Listing.TABLE
) -> None:
    """Show the brokers with their state, and all problems. Exit code 1 if there are problems.

    \b
    isolog cluster status --bootstrap localhost:9092
    isolog cluster status --output json | jq .problems
    """
    from spark_stream.client.administration import inspect_cluster

    with connection(bootstrap, path) as opened:
        found, statuses = inspect_cluster(opened)
    show_cluster(found, statuses, output)
    if found.problems:
        raise typer.Exit(1)


@app.command()
def decommission(
    broker: Annotated[str, typer.Argument(metavar="BROKER", help="Id of the broker.")],
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    yes: Yes = False,
) -> None:
    """Remove a broker from the cluster by moving its replicas to other brokers.

    The broker may be dead. A live broker serves until its replicas are in sync on other brokers.
    `isolog cluster status` shows it until then. Stop it afterwards.

    \b
    isolog cluster decommission 3 --bootstrap localhost:9092
    """
    with log(bootstrap, path) as opened:
        found = next((each for each in opened.cluster().brokers if each.id == broker), None)
        if found is not None:
            replicas = counted(found.replicas, "replica")
            confirm(yes, f"Move {replicas} of broker {broker} to other brokers?", "move them")
        opened.decommission(broker)
    note(
        f"broker {broker} is being decommissioned: `isolog cluster status` shows it until its"
        " replicas have moved"
    )


@app.command()
def recommission(
    broker: Annotated[str, typer.Argument(metavar="BROKER", help="Id of the broker.")],
    bootstrap: Bootstrap = None,
    path: LogPath = None,
) -> None:
    """Cancel a decommission, so that the broker stays and gets replicas again.

    Moves that already started continue. `isolog topic cancel-moves` cancels the moves of a topic.

    \b
    isolog cluster recommission 3 --bootstrap localhost:9092
    """
    with log(bootstrap, path) as opened:
        opened.recommission(broker)
    note(f"broker {broker} stays in the cluster")


Metadata = Annotated[
    str | None,
    typer.Option(
        "--metadata",
        metavar="STORE",
        help="Metadata store of the brokers (their setting `metadata`): a file, or"
        " etcd://HOST:PORT,…/NAME.",
        show_default=False,
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File for the copy.")],
    metadata: Metadata = None,
    conf: BrokerConf = None,
    path: LogPath = None,
    force: Force = False,
) -> None:
    """Write a consistent copy of the metadata store. The brokers may be running.

    The copy contains the secret of the cluster. Make it readable only for the brokers' user.

    \b
    isolog cluster backup metadata.backup --metadata /var/lib/isolog/metadata.sqlite
    isolog cluster backup metadata.backup --metadata etcd://10.0.0.1:2379,10.0.0.2:2379/prod
    isolog cluster backup metadata.backup --path data/
    """
    from spark_stream.cluster import backup as backups

    store = _store(metadata, path)
    if isinstance(store, Path):
        backups.back_up(store, file, force=force)
    else:
        backups.back_up_from(metadata_backend(str(store), conf), file, force=force)
    note(f"copied {store} to {file}")


@app.command()
def restore(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="Backup file, for stopped brokers. Default: the store that running brokers have"
            " open.",
            show_default=False,
        ),
    ] = None,
    metadata: Metadata = None,
    conf: BrokerConf = None,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    force: Force = False,
) -> None:
    """Restore the metadata store from running brokers, or from a backup.

    If the store was deleted under running brokers, they still have it open, and write it back if
    no FILE is given. Restore a backup only while all brokers are stopped. Then start all of them:
    the replica with the longest log of each partition becomes its leader.

    \b
    isolog cluster restore --bootstrap localhost:9092
    isolog cluster restore metadata.backup --metadata /var/lib/isolog/metadata.sqlite
    """
    from spark_stream.client.administration import restore_metadata
    from spark_stream.cluster import backup as backups

    if file is None:
        if metadata is not None or force:
            raise InvalidOption("--metadata and --force need FILE", hint="Give the backup file.")
        with connection(bootstrap, path) as opened:
            restore_metadata(opened)
        note("restored the metadata store, all running brokers use it")
        return
    if bootstrap is not None:
        raise InvalidOption(
            "--bootstrap and FILE exclude each other: the brokers must be stopped",
            hint="Give --metadata STORE, or --path DIR of a single broker.",
        )
    store = _store(metadata, path)
    if not isinstance(store, Path):
        backups.put_back_into(file, metadata_backend(str(store), conf), force=force)
        note(f"restored {store} from {file}: start all brokers")
        return
    if metadata is None and not (store.exists() or force):
        raise InvalidOption(
            f"there is no metadata store in {store.parent}",
            hint="Give --metadata STORE if the brokers share a store. If a single broker lost its"
            " store, give --force.",
        )
    backups.put_back(file, store, force=force)
    note(f"restored {store} from {file}: start all brokers")


@app.command("migrate-metadata")
def migrate_metadata(
    source: Annotated[str, typer.Argument(metavar="FROM", help="Store to move from.")],
    target: Annotated[
        str | None, typer.Argument(metavar="TO", help="Store to move to.", show_default=False)
    ] = None,
    conf: BrokerConf = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel an unfinished move from FROM.")
    ] = False,
) -> None:
    """Move the metadata of a stopped cluster to another store, a file or etcd.

    The copy is compared with the original. The command may be interrupted and run again. Brokers
    refuse to start on an incomplete copy, and on a store whose metadata was moved.

    
    isolog cluster migrate-metadata data/metadata.sqlite etcd://10.0.0.1:2379/prod
    """
    from spark_stream.cluster import backup as backups

    if cancel == (target is not None):
        raise InvalidOption("migrate-metadata takes FROM and TO, or FROM and --cancel")
    if target is None:
        backups.cancel(metadata_backend(source, conf))
        note(f"canceled the move: brokers may start on {source} again")
        return
    records = backups.migrate(metadata_backend(source, conf), metadata_backend(target, conf))
    note(f"moved {records} records to {target}: start the brokers with --metadata {target}")


def _store(metadata: str | None, path: Path | None) -> Path | EtcdPlace:
    from spark_stream.cluster import backup as backups
    from spark_stream.cluster.stores.backends import parse_place

    if metadata is not None and path is None:
        return parse_place(metadata)
    if metadata is None:
        _, path = where(None, path)
    if metadata is not None or path is None:
        raise InvalidOption(
            "no metadata store is named",
            hint="Give --metadata STORE, or --path DIR of a single broker.",
        )
    return path / backups.STORE_NAME

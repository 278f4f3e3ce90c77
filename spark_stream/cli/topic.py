"""``isolog topic``: create, list, describe, delete."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer

from spark_stream.cli.ddl import parse_schema
from spark_stream.cli.file_schemas import schema_of_file
from spark_stream.cli.options import Bootstrap, Listing, LogPath, Output, Topic, log, note
from spark_stream.cli.show import show_names, show_topic
from spark_stream.errors import InvalidOption

app = typer.Typer(no_args_is_help=True, help="Create, list, describe and delete topics.")


@app.command()
def create(
    topic: Topic,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    partitions: Annotated[int, typer.Option(metavar="N", help="How many partitions.")] = 1,
    replication_factor: Annotated[
        int, typer.Option(metavar="N", help="How many replicas each partition has.")
    ] = 1,
    config: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="A setting, such as retention.ms=3600000; repeatable."),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEMA", help="The columns, as Spark writes them.", show_default=False
        ),
    ] = None,
    schema_from: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The columns of a Parquet, Arrow, CSV or JSON lines file.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Makes a topic. Without a schema it has Kafka's columns: key, value, headers, timestamp.

    \b
    isolog topic create greetings --path data/
    isolog topic create a --schema "id bigint, tags array<string>"
    isolog topic create b --schema-from b.parquet --partitions 4
    isolog topic create c --config compression=zstd
    """
    if schema is not None and schema_from is not None:
        raise InvalidOption("--schema and --schema-from exclude each other", hint="Give one.")
    settings = _settings(config or [])
    columns: pa.Schema | None = None
    if schema is not None:
        columns = parse_schema(schema)
    elif schema_from is not None:
        columns = schema_of_file(schema_from)
    with log(bootstrap, path, makes=True) as opened:
        made = opened.create_topic(topic, partitions, replication_factor, columns, settings)
    count = len(made.partitions)
    note(f"created topic {topic}: {count} partition{'s' if count > 1 else ''}")


@app.command("list")
def list_topics(
    bootstrap: Bootstrap = None, path: LogPath = None, output: Output = Listing.TABLE
) -> None:
    """Lists the names of all topics, one a line.

    \b
    isolog topic list --bootstrap localhost:9092
    """
    with log(bootstrap, path) as opened:
        show_names(opened.topics(), output)


@app.command()
def describe(
    topic: Topic, bootstrap: Bootstrap = None, path: LogPath = None, output: Output = Listing.TABLE
) -> None:
    """Shows a topic: its columns, its settings, and the offsets of its partitions.

    \b
    isolog topic describe flights --path data/
    isolog topic describe flights --output json | jq .partitions
    """
    with log(bootstrap, path) as opened:
        show_topic(opened.describe(topic), output)


@app.command()
def delete(
    topic: Topic,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Deletes a topic with all its records.

    \b
    isolog topic delete flights --path data/ --yes
    """
    with log(bootstrap, path) as opened:
        found = opened.describe(topic)
        if not yes:
            _ask(topic, sum(p.log_end_offset - p.log_start_offset for p in found.partitions))
        opened.delete_topic(topic)
    note(f"deleted topic {topic}")


def _ask(topic: str, records: int) -> None:
    if not sys.stdin.isatty():
        raise InvalidOption(
            f"topic {topic!r} has {records} records, and nobody is there to be asked",
            hint="Give --yes to delete it.",
        )
    typer.confirm(f"Delete topic {topic} with its {records} records?", abort=True, err=True)


def _settings(pairs: list[str]) -> dict[str, str]:
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise InvalidOption(
                f"--config takes NAME=VALUE, not {pair!r}",
                hint="Such as compression=zstd.",
            )
        settings[name.strip()] = value.strip()
    return settings

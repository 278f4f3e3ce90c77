"""``isolog topic``: create, list, describe, alter, move, cancel-moves, elect, trim, delete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_stream.cli.options import (
    Bootstrap,
    Listing,
    LogPath,
    Output,
    Topic,
    Yes,
    confirm,
    counted,
    log,
    note,
    note_warning,
    position_of,
)
from spark_stream.errors import InvalidOption, TopicExists

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_stream.lake_worker.status import TopicTable
    from spark_stream.wire.topic_messages import TopicDescription

app = typer.Typer(
    no_args_is_help=True, help="Create, list, describe, alter, trim and delete topics."
)


@app.command()
def create(
    topic: Topic,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    partitions: Annotated[
        int | None,
        typer.Option(metavar="N", help="Number of partitions. Default: 1.", show_default=False),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Replicas of each partition. Default: the setting of the brokers, else the number"
            " of brokers up to 3.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="A setting, such as retention.ms=3600000. Repeatable."),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(metavar="SCHEMA", help="Columns in Spark's syntax.", show_default=False),
    ] = None,
    schema_from: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Use the columns of this Parquet, Arrow, CSV or JSON lines file.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    assignment: Annotated[
        str | None,
        typer.Option(
            metavar="IDS",
            help="Brokers of each partition, such as 1,2/2,3. The preferred leader is the first.",
            show_default=False,
        ),
    ] = None,
    partition_by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS",
            help="Partition records by these columns or fields (user.id), separated by commas. Sets"
            " partition.by.",
            show_default=False,
        ),
    ] = None,
    if_not_exists: Annotated[
        bool,
        typer.Option(
            "--if-not-exists", help="Do not fail if the topic exists, and do not change it."
        ),
    ] = False,
) -> None:
    """Create a topic. Without a schema it has the columns of Kafka: key, value, headers, timestamp.

    \b
    isolog topic create greetings --path data/
    isolog topic create a --schema "id bigint, tags array<string>"
    isolog topic create b --schema-from b.parquet --partitions 4
    isolog topic create c --config compression=zstd --if-not-exists
    isolog topic create d --partitions 6 --replication-factor 3
    isolog topic create e --assignment 1,2/2,3/3,1
    isolog topic create f --schema "user struct<id:bigint>, n int" --partition-by user.id
    """
    from spark_stream.cli.input.formats import schema_of_file
    from spark_stream.schema.keys import PARTITION_BY
    from spark_stream.sql.ddl import parse_schema

    if schema is not None and schema_from is not None:
        raise InvalidOption("--schema and --schema-from exclude each other", hint="Give one.")
    settings = _settings(config or [])
    if partition_by is not None:
        if settings.get(PARTITION_BY, partition_by) != partition_by:
            raise InvalidOption(
                f"--partition-by and --config {PARTITION_BY} exclude each other", hint="Give one."
            )
        settings[PARTITION_BY] = partition_by
    columns: pa.Schema | None = None
    if schema is not None:
        columns = parse_schema(schema)
    elif schema_from is not None:
        columns = schema_of_file(schema_from)
    with log(bootstrap, path, makes=True) as opened:
        try:
            made = opened.create_topic(
                topic,
                partitions,
                replication_factor,
                columns,
                settings,
                assignment=_assignment(assignment),
            )
        except TopicExists:
            if not if_not_exists:
                raise
            found = opened.describe(topic)
            note(f"topic {topic} exists: {_count(found)}")
            for difference in _differences(found, partitions, columns, settings):
                note(difference)
            return
    note(f"created topic {topic}: {_count(made)}")
    note_warning(made)


@app.command("list")
def list_topics(
    bootstrap: Bootstrap = None, path: LogPath = None, output: Output = Listing.TABLE
) -> None:
    """List the names of all topics, one per line.

    \b
    isolog topic list --bootstrap localhost:9092
    """
    from spark_stream.cli.output.topics import show_names

    with log(bootstrap, path) as opened:
        show_names(opened.topics(), output)


@app.command()
def describe(
    topic: Topic, bootstrap: Bootstrap = None, path: LogPath = None, output: Output = Listing.TABLE
) -> None:
    """Show the columns and settings of a topic, and the offsets and replicas of its partitions.

    A topic of a lake is shown with the last report of its worker. If retention removed records from
    the log, the offsets that the tables have are shown too.

    \b
    isolog topic describe flights --path data/
    isolog topic describe flights --output json | jq .partitions
    """
    from spark_stream.cli.output.topics import show_topic

    with log(bootstrap, path) as opened:
        found = opened.describe(topic)
        tables: Sequence[TopicTable] = ()
        if found.lakes:
            from spark_stream.lake_worker.status import tables_of_topic

            tables = tables_of_topic(opened, found)
    show_topic(found, output, tables=tables)


@app.command()
def alter(
    topic: Topic,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="New number of partitions. It cannot decrease.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="A setting, such as retention.ms=3600000. Repeatable."),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEMA",
            help="All columns of the new schema. New columns come last, numbers may become wider.",
            show_default=False,
        ),
    ] = None,
    add_column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help='Column to add, such as "remark string". Repeatable.',
            show_default=False,
        ),
    ] = None,
) -> None:
    """Add partitions or columns to a topic, or change its settings. Running queries continue.

    Existing records stay in their partitions. With more partitions, new records of a key may go to
    another partition than its old records.

    \b
    isolog topic alter flights --partitions 8
    isolog topic alter flights --config retention.ms=3600000 --config compression=zstd
    isolog topic alter flights --schema "id bigint, speed double, remark string"
    isolog topic alter flights --add-column "remark string"
    """
    import pyarrow as pa

    from spark_stream.sql.ddl import parse_altered, parse_schema, schema_text

    settings = _settings(config or [])
    if partitions is None and not settings and schema is None and not add_column:
        raise InvalidOption(
            "nothing to change",
            hint="Give --partitions N, --config K=V, --schema SCHEMA or --add-column COLUMN.",
        )
    if schema is not None and add_column:
        raise InvalidOption("--schema and --add-column exclude each other", hint="Give one.")
    columns = None if schema is None else parse_altered(schema)
    added = [field for text in add_column or [] for field in parse_schema(text)]
    with log(bootstrap, path) as opened:
        if added:
            columns = pa.schema([*opened.describe(topic).schema, *added])
        altered = opened.alter_topic(topic, partitions, settings, schema=columns)
    changes = [_count(altered), *(f"{name}={altered.config[name]}" for name in settings)]
    if columns is not None:
        changes.append(schema_text(altered.schema))
    note(f"altered topic {topic}: {', '.join(changes)}")
    note_warning(altered)


@app.command()
def move(
    topic: Topic,
    partition: Annotated[
        int, typer.Argument(metavar="PARTITION", help="Number of the partition.", min=0)
    ],
    brokers: Annotated[
        str,
        typer.Argument(
            metavar="IDS", help="Brokers, such as 2,3,4. The preferred leader is the first."
        ),
    ],
    bootstrap: Bootstrap = None,
    path: LogPath = None,
) -> None:
    """Move a partition to other brokers. Old replicas are removed when the new ones are in sync.

    \b
    isolog topic move flights 0 2,3,4
    """
    with log(bootstrap, path) as opened:
        opened.move_replicas(topic, {partition: _brokers(brokers)})
    note(f"{topic}/{partition} moves to {brokers}: `isolog topic describe {topic}` shows progress")


@app.command("cancel-moves")
def cancel_moves(topic: Topic, bootstrap: Bootstrap = None, path: LogPath = None) -> None:
    """Cancel the moves of a topic's partitions.

    \b
    isolog topic cancel-moves flights
    """
    with log(bootstrap, path) as opened:
        opened.cancel_moves(topic)
    note(f"canceled the moves of {topic}")


@app.command("elect")
def elect(
    topic: Annotated[
        str | None,
        typer.Argument(metavar="[TOPIC]", help="Name of the topic. Default: all topics."),
    ] = None,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
) -> None:
    """Elect the preferred leader of each partition, which is its first replica.

    When a broker fails, other brokers take over its partitions. After its return, an election of
    the preferred leaders distributes the load again.

    \b
    isolog topic elect flights
    isolog topic elect
    """
    with log(bootstrap, path) as opened:
        moved = opened.elect_preferred_leaders(topic)
    note(f"changed the leader of {counted(moved, 'partition')}")


@app.command()
def delete(
    topic: Topic,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    yes: Yes = False,
) -> None:
    """Delete a topic with all its records.

    \b
    isolog topic delete flights --path data/ --yes
    """
    with log(bootstrap, path) as opened:
        found = opened.describe(topic)
        confirm(yes, delete_question(found), "delete it")
        opened.delete_topic(topic)
    note(f"deleted topic {topic}")


@app.command()
def trim(
    topic: Topic,
    before: Annotated[
        str,
        typer.Option(
            metavar="POSITION",
            help="First position to keep: an offset, a time (2024-05-01), an age (2d), or latest.",
            show_default=False,
        ),
    ],
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N", help="Only this partition. Repeatable. Default: all partitions.", min=0
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the new log starts without trimming.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Delete the oldest records of a topic by advancing the log start of its partitions.

    Readers can no longer get these records from any replica. A partition whose log start is later
    already does not change.

    \b
    isolog topic trim flights --before 2024-05-01 --dry-run
    isolog topic trim flights --before 7d --yes
    isolog topic trim flights --before 5000 --partition 0 --yes
    """
    position = position_of("--before", before, named=["latest"])
    if isinstance(position, int) and position < 0:
        raise InvalidOption(
            f"--before takes an offset of at least 0, not {position}",
            hint="Give an offset, a time, an age such as 7d, or latest.",
            option="--before",
        )
    with log(bootstrap, path) as opened:
        plan = opened.plan_trim(topic, position, partitions=partition)
        if dry_run:
            for number, offset in sorted(plan.before.items()):
                start = plan.log_starts[number]
                print(f"{topic}/{number}: log start {start} -> {max(start, offset)}")
            note(f"{counted(plan.records, 'record')} would be deleted")
            return
        records = counted(plan.records, "record")
        confirm(yes, f"Delete {records} of topic {topic}?", "delete them")
        trimmed = opened.trim(topic, plan)
    for number, start in sorted(trimmed.items()):
        note(f"{topic}/{number} now starts at offset {start}")


def delete_question(topic: TopicDescription) -> str:
    """Return the question for the confirmation of a deletion."""
    from spark_stream.cli.output.topics import record_count

    records = record_count(topic)
    if records is None:
        return f"Delete topic {topic.name}? The number of its records is unknown."
    return f"Delete topic {topic.name} with its {counted(records, 'record')}?"


def _count(topic: TopicDescription) -> str:
    return counted(len(topic.partitions), "partition")


def _differences(
    found: TopicDescription,
    partitions: int | None,
    columns: pa.Schema | None,
    settings: dict[str, str],
) -> Iterator[str]:
    """Yield the differences between an existing topic and the requested topic."""
    from spark_stream.sql.ddl import schema_text

    if partitions is not None and partitions != len(found.partitions):
        yield (
            f"not {partitions} partitions: add some with `isolog topic alter {found.name}"
            f" --partitions {partitions}`"
            if partitions > len(found.partitions)
            else f"not {partitions} partitions: the number of partitions cannot decrease"
        )
    if columns is not None and not columns.equals(found.schema):
        yield f"its columns differ: {schema_text(found.schema)}"
    for name, value in settings.items():
        if name in found.config and found.config[name] != value:
            yield (
                f"{name} is {found.config[name]}, not {value}: change it with"
                f" `isolog topic alter {found.name} --config {name}={value}`"
            )


def _assignment(text: str | None) -> list[list[str]] | None:
    return None if text is None else [_brokers(part) for part in text.split("/")]


def _brokers(text: str) -> list[str]:
    brokers = [part.strip() for part in text.split(",")]
    if not all(brokers):
        raise InvalidOption(
            f"{text!r} is not a list of broker ids",
            hint="Give ids separated by commas, such as 1,2,3.",
        )
    return brokers


def _settings(pairs: list[str]) -> dict[str, str]:
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise InvalidOption(
                f"--config takes NAME=VALUE, not {pair!r}",
                hint="Example: --config compression=zstd.",
            )
        settings[name.strip()] = value.strip()
    return settings

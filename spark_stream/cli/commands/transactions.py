"""``isolog transactions``: list, describe, abort.

An open transaction holds readers under read_committed back at its first record in each partition.
It *hangs* if it is past its own timeout, or open for longer than the operator allows.
"""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Annotated

import typer

from spark_stream.cli.options import (
    Bootstrap,
    Listing,
    LogPath,
    Output,
    Yes,
    completed,
    confirm,
    log,
    note,
)
from spark_stream.cli.output.show_transactions import (
    Aged,
    ReadableRange,
    duration,
    places,
    show_transaction,
    show_transactions,
)
from spark_stream.client.log import Log
from spark_stream.errors import IsologError
from spark_stream.wire.topic_messages import PartitionDescription
from spark_stream.wire.transaction_messages import TransactionDescription

app = typer.Typer(no_args_is_help=True, help="List, describe and abort transactions.")


class ShownState(StrEnum):
    """The state of a transactional id."""

    EMPTY = "empty"
    OPEN = "open"
    COMMITTING = "committing"
    ABORTING = "aborting"
    COMMITTED = "committed"
    ABORTED = "aborted"


TransactionalId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="A transactional id.",
        show_default=False,
        autocompletion=completed(
            lambda log: (each.transactional_id for each in log.transactions())
        ),
    ),
]


@app.command("list")
def list_transactions(
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    state: Annotated[
        ShownState | None, typer.Option(help="Only those in this state.", show_default=False)
    ] = None,
    hanging: Annotated[bool, typer.Option("--hanging", help="Only those that hang.")] = False,
    longer_than: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="What is open for longer hangs. Default: what is past its own timeout.",
            show_default=False,
        ),
    ] = None,
    output: Output = Listing.TABLE,
) -> None:
    """List all transactional ids, each with its present or last transaction.

    \b
    isolog transactions list --state open
    isolog transactions list --hanging --longer-than 60
    isolog transactions list --hanging --output json | jq '.[].age_s'
    """
    with log(bootstrap, path) as opened:
        found = _aged(opened.transactions(), longer_than)
    if state is not None:
        found = [each for each in found if each.facts.state == state]
    if hanging:
        found = [each for each in found if each.hangs]
    show_transactions(found, output)


@app.command()
def describe(
    transactional_id: TransactionalId,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    output: Output = Listing.TABLE,
) -> None:
    """Show a transactional id: its transaction, its owner, and how far it holds readers back.

    \b
    isolog transactions describe loader-1 --path data/
    """
    with log(bootstrap, path) as opened:
        facts = opened.describe_transaction(transactional_id)
        ends = _readable(opened, facts)
    show_transaction(_aged([facts], None)[0], ends, output)


@app.command()
def abort(
    transactional_id: TransactionalId,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    yes: Yes = False,
) -> None:
    """Abort the open transaction of an id, whoever owns it. Its producer is fenced.

    Readers under read_committed go on at once and see nothing of it. The producer's next call
    fails; it is up to the producer whether it starts again.

    \b
    isolog transactions abort loader-1 --path data/ --yes
    """
    with log(bootstrap, path) as opened:
        facts = opened.describe_transaction(transactional_id)
        if facts.state in (ShownState.ABORTING, ShownState.ABORTED):
            note(f"transaction {facts.number} of {transactional_id} is aborted already")
            return
        where = places(facts.partitions)
        if facts.state == ShownState.OPEN:  # the broker refuses any other, and changes nothing
            what = f"transaction {facts.number} of {transactional_id}"
            wrote = f"which has written to: {where}" if where else "which has written nothing yet"
            confirm(yes, f"Abort {what}, {wrote}?", "abort it")
        ended = opened.abort_transaction(transactional_id)
    [aged] = _aged([ended], None)
    age = "" if aged.age_s is None else f", begun {duration(aged.age_s)} ago"
    where = places(ended.partitions) or where  # a finished transaction has no partitions
    wrote = f"; it had written to: {where}" if where else ""
    note(f"aborted transaction {ended.number} of {transactional_id}{age}{wrote}")


def _aged(found: list[TransactionDescription], hangs_after_s: float | None) -> list[Aged]:
    now_ms = time.time_ns() // 1_000_000
    return [Aged.of(each, now_ms, hangs_after_s) for each in found]


def _readable(opened: Log, facts: TransactionDescription) -> dict[tuple[str, int], ReadableRange]:
    """Return the bounds of the partitions that answer."""
    known: dict[tuple[str, int], PartitionDescription] = {}
    for topic in sorted({each.topic for each in facts.partitions}):
        try:
            described = opened.describe(topic).partitions
        except IsologError:  # deleted, or out of reach: show the transaction all the same
            continue
        known |= {(topic, each.partition): each for each in described}
    return {
        place: ReadableRange(each.last_stable_offset, each.log_end_offset)
        for place, each in known.items()
        if each.last_stable_offset is not None and each.log_end_offset is not None
    }

"""``isolog sinks``: list, delete.

A sink's id is the name under which committed batches are remembered: that of a streaming query, or
the option ``sinkId``.
"""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer
from rich.table import Table

from spark_stream.cli.options import Bootstrap, Listing, LogPath, Output, Yes, confirm, log, note
from spark_stream.cli.output.show import console
from spark_stream.cli.output.show_transactions import duration
from spark_stream.cli.texts import as_json, cell
from spark_stream.wire.transaction_messages import SinkDescription

app = typer.Typer(no_args_is_help=True, help="List and delete the sinks of queries.")

SinkId = Annotated[
    str,
    typer.Argument(metavar="ID", help="A sink's id, as `list` shows it.", show_default=False),
]


@app.command("list")
def list_sinks(
    bootstrap: Bootstrap = None, path: LogPath = None, output: Output = Listing.TABLE
) -> None:
    """List all sinks, each with its query and the last batch that was committed.

    \b
    isolog sinks list --path data/
    isolog sinks list --output json | jq '.[] | select(.state == "expired") | .transactional_id'
    """
    with log(bootstrap, path) as opened:
        found = opened.sinks()
    if output is Listing.JSON:
        print(json.dumps(as_json(found), indent=2))
        return
    now_ms = time.time_ns() // 1_000_000
    table = Table()
    table.add_column("sink id", overflow="fold")
    table.add_column("query", overflow="fold")
    table.add_column("state")
    table.add_column("last batch", justify="right")
    table.add_column("last used", justify="right")
    for each in found:
        table.add_row(
            cell(each.transactional_id),
            cell(each.query_name or each.query),
            each.state,
            _batch(each),
            f"{duration(max(0.0, (now_ms - each.last_used_ms) / 1000))} ago",
        )
    console().print(table)


@app.command()
def delete(
    sink_id: SinkId, bootstrap: Bootstrap = None, path: LogPath = None, yes: Yes = False
) -> None:
    """Forget a sink, and which batch it committed last. Then another query may use its id.

    If its own query is started again and repeats that batch, the batch is written twice.

    \b
    isolog sinks delete sink/departures --path data/ --yes
    """
    with log(bootstrap, path) as opened:
        for each in opened.sinks():
            if each.transactional_id == sink_id:  # the broker refuses an unknown id
                what = f"sink {sink_id} of query {each.query}, last batch {_batch(each)}"
                confirm(yes, f"Forget {what}?", "delete it")
        opened.delete_sink(sink_id)
    note(f"deleted sink {sink_id}")


def _batch(sink: SinkDescription) -> str:
    return "-" if sink.committed_batch < 0 else str(sink.committed_batch)

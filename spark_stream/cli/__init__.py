"""``isolog``, the command line: brokers, topics, records in and records out.

``commands/``  the commands, one module each
``input/``     files and standard input, read as Arrow batches of a topic
``output/``    records, topics, brokers and transactions, written down
``app``        the commands put together; errors and exit codes
``options``    the options that several commands share; where the log is
``streams``    standard streams that are closed, full or not read any more
``progress``   a bar on a terminal
``texts``      columns as text, whole columns at once
``moments``    dates, times, moments and durations as text, and back

Data goes to standard output, everything else to standard error. Exit code 0, 1 (failed), 2 (bad
usage).
"""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """The console script ``isolog``; never returns."""
    from spark_stream.cli.app import run

    run()

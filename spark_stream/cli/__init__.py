"""``isolog``, the command line: brokers, topics, records in and records out.

``commands/``  the commands, one module each
``input/``     files and standard input, read as Arrow batches of a topic
``output/``    records, topics, brokers and transactions, printed
``app``        all commands together; errors and exit codes
``options``    the options that several commands share; finds the log
``terminal``   standard streams, a progress bar, the signals that end a command

Data goes to standard output, everything else to standard error. Exit code 0, 1 (failed), 2 (bad
usage).
"""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """Run the console script ``isolog``; never returns."""
    from spark_stream.cli.app import run

    run()

"""``isolog``, the command line: manage brokers and topics, write and read records.

``commands/``  the commands, one module each
``operating/`` tools for operators, such as ``top``
``input/``     files and standard input as Arrow batches of a topic
``output/``    records, topics and values as text
``app``        the list of commands, the reporting of errors, exit codes
``options``    options of several commands, and the connection to the log
``terminal``   standard streams, progress bar, signals that end a command

Data goes to standard output, messages go to standard error. Exit codes: 0 (success), 1 (failure),
2 (wrong usage).
"""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """Run the console script ``isolog``, and end the process."""
    from spark_stream.cli.app import run

    run()

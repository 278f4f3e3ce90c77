"""``isolog``, the command line: brokers, topics, records in and records out.

``app``               the commands put together; errors and exit codes
``options``           the options that several commands share; where the log is
``broker``            broker start, stop, status
``background``        the process behind a directory: started, found, ended
``topic``             topic create, list, describe, alter, delete
``show``              topics and brokers as tables and as JSON
``ddl``               Spark's DDL ("id bigint, …") to an Arrow schema and back
``streams``           standard streams that are closed, full or not read any more
``transactions``      list, describe, abort
``show_transactions`` transactions as tables and as JSON
``produce``           records in
``sending``           an input's records to the leaders; all of them or none in a transaction
``inputs``            what is read: which format, and its records as batches
``file_schemas``      a file's columns as those of a topic that takes the file
``blocks``            bytes of a pipe or file, cut between two records
``csv_records``       where a CSV record ends, and whether its quotes are sound
``text_inputs``       blocks of lines and CSV as batches
``json_lines``        blocks of JSON lines as batches
``fitting``           batches of a file as those of a topic, or an error that names the column
``placing``           which partition a record of the input asks for
``progress``          a bar on a terminal
``consume``           records out
``ranges``            which offsets to read, and reading them: to an end, or on and on
``texts``             columns as text, whole columns at once
``moments``           dates, times, moments and durations as text, and back
``intervals``         Arrow's intervals as structs, and back
``outputs``           batches as lines, JSON, CSV, a table, an Arrow stream

Data goes to standard output, everything else to standard error. Exit code 0, 1 (failed), 2 (bad
usage).
"""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """The console script ``isolog``; never returns."""
    from spark_stream.cli.app import run

    run()

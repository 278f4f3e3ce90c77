"""The topic as a table: rows of topics as Parquet files of Delta tables, committed exactly once.

A lake is a set of topics and a location. Each topic has one Delta table there. A round of the
worker requests one atomic cut of all topics, writes the rows below it as files, and commits each
table once (``rounds.py``).

* ``delta/``: the log of one Delta table, without I/O. Offsets of a topic are part of its table.
* ``steps.py``: the steps of a round, which a driver carries out.
* ``cuts.py``: the columns and rows of the table of cuts.
* ``rounds.py``: the round, as a script that may stop after each step.
* ``versions.py``: the versions of one table, and their floor.
* ``expiry.py``: the removal of old versions, and of files that were replaced.
* ``cleaning.py``: the removal of files that no version has.
* ``retention.py``: the removal of rows by the topic's retention, file by file.
* ``reading.py``: rows of a table by their offsets, for readers below a log start.
"""

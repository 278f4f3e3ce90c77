"""The location of a lake: its files, and the rows in them.

* ``stores.py``: the files of a location, with atomic creation. ``objects.py``: those of S3.
* ``statistics.py``: the statistics of a file in a Delta log.
* ``files.py``: rows as Parquet files of a table.
* ``checkpoints.py``: the state of a table as a file. ``snapshots.py``: the state of a table.
"""

"""The location of a lake: its files, and the rows in them.

* ``stores.py``: the files of a location, with atomic creation.
* ``files.py``: rows as Parquet files of a table.
"""

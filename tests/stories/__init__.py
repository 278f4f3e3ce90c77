"""Failure stories: text files of commands and their outcomes, one story each.

A story begins with the property that it guards. Then come commands, each with its outcome indented
below it. The rules behind them are those of ``spark_stream.consistency``. Around them is the
partition in memory of ``tests/consistency/partition_model.py``, which also checks the invariants
after every command. ``commands.py`` lists the commands.

``python -m tests.stories`` writes the outcomes again. Check the difference before you accept it.
"""

"""Failure stories: text files of commands and of what follows from them, one story each.

A story opens with what it guards. Then come commands, each with what it answers indented below it.
The rules that answer are those of ``spark_stream.consistency``; around them is the partition in
memory of ``tests/consistency/partition_model.py``, which also checks after every command what must
always hold. ``commands.py`` lists the commands.

``python -m tests.stories`` writes the answers anew; look at the difference before you believe it.
"""

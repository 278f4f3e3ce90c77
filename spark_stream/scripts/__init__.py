"""Long procedures, step by step: several reads and writes of the store and of partitions.

A script is a generator. It yields steps (``steps``), is resumed with each answer or with the typed
error of the step thrown in, and returns its result. Its driver carries out the steps, and other
scripts may run in between. In a broker the driver is a thread (``broker/scripting/driver.py``). In
tests and in a simulation it is a scheduler, which may stop the script between any two steps, as a
crash does.

``steps``              the steps that a script may take
``readers``            sessions of named readers, progress of queries, cuts for read_atomic
``transactions``       a folder: transactions, named consumers, and sinks
``groups``             consumer groups: members join and leave, partitions are assigned
``topics``             a topic's record and files, and the left-overs of deleted topics
``lakes``              lakes: creation, recorded progress, removal
``partition_records``  elections, moves of replicas, and log starts
"""

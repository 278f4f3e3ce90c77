"""Long procedures, step by step: several reads and writes of the store and of partitions.

A script is a generator. It yields steps (``steps``), is resumed with each answer or with the typed
error of the step thrown in, and returns its result. Its driver decides how a step is carried out,
and what may happen in between. In a broker the driver is a thread
(``broker/scripting/driver.py``), in tests and in a simulation a scheduler, which may stop the
script for good between any two steps, as a crash does.

``steps``         what a script may ask for
``electing``      changes of a partition's record: leader, in-sync replicas
``moving``        replicas on their way to other brokers
``topics``        a topic's files and its record; ``left_overs``: what a removed topic left
``groups``        consumer groups: members join and leave, partitions move
``queries``       queries under a consumer's name: where one first started, and is now
``cutting``       a cut through partitions that no transaction straddles
``transactions``  a folder: transactions, named consumers, and sinks
"""

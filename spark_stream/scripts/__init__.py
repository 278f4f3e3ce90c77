"""Long procedures, step by step: several reads and writes of the store and of partitions.

A script is a generator. It yields steps (``steps``), is resumed with each answer, or has the typed
error of a step thrown in, and returns its result. Whoever drives it decides how a step is carried
out, and what may happen in between: in a broker a thread does (``broker/scripting/driver.py``), in
tests and in a simulation a scheduler, which may stop the script for good between any two steps, as
a crash does.

``steps``         what a script may ask for
``electing``      changes of a partition's record: leader, in-sync replicas
``moving``        replicas on their way to other brokers
``topics``        a topic's files and its record; ``left_overs``: what a removed one left
``queries``       queries under a consumer's name: where one first started, and is now
``cutting``       a cut through partitions that takes no transaction apart
``transactions``  a room: transactions, named consumers, and sinks
"""

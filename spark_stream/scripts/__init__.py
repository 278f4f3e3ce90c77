"""Long procedures, step by step: several reads and writes of the store and of partitions.

A script is a generator. It yields steps (``steps``), is resumed with each answer, or has the typed
error of a step thrown in, and returns its result. Whoever drives it decides how a step is carried
out, and what may happen in between: in a broker a thread does (``broker/driver.py``), in tests and
in a simulation a scheduler, which may stop the script for good between any two steps, as a crash
does.

``steps``      what a script may ask for
``records``    one compare-and-set of a transaction's record
``finishing``  the markers of a decided transaction, its consumers' positions, its end
``deciding``   take-over, begin, join, renewal, commit, abort, kill
``consumers``  named consumers: who owns a name, and where its consumer goes on
``positions``  the records of named consumers
``queries``    queries under a consumer's name: where one first started, and is now
``sinks``      a sink's branches, and an end for what failed
``stopped``    the records of runs that were given up
``sweeping``   what nobody asks for: expiry, recovery, forgetting
``cutting``    a cut through partitions that takes no transaction apart
``topics``     a topic's files and its record
``refusals``   what the rules deny, as typed errors
"""

"""Transactions, named consumers and sinks, step by step.

``records``    one compare-and-set of a transaction's record
``deciding``   take-over, begin, join, renewal, commit, abort, kill
``finishing``  the markers of a decided transaction, its consumers' positions, its end
``sweeping``   regular work: expiry, recovery, forgetting
``consumers``  named consumers: who owns a name, and where its consumer goes on
``positions``  the records of named consumers
``sinks``      a sink's branches, and the abort of what failed
``stopped``    the records of runs that were given up
"""

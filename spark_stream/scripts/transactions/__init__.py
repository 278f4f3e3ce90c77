"""Transactions, named consumers and sinks, step by step.

``records``    one compare-and-set of a transaction's record
``positions``  the records of named consumers
``finishing``  the markers of a decided transaction, its consumers' positions, its end; sweeps
``deciding``   take-over, begin, join, renewal, commit, abort, kill; owners of consumers' names
``sinks``      a sink's branches, and the abort of failed ones
"""

"""Transactions, named consumers and sinks, step by step.

``records``    one compare-and-set of a transaction's record
``positions``  the records of named consumers
``finishing``  sweeps, and the markers, positions and end of a decided transaction
``deciding``   take-over, begin, join, renewal, commit, abort and kill, and owners of names
``sinks``      a sink's branches, and the abort of failed ones
"""

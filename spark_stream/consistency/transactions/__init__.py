"""A transaction's life, beyond one partition.

``transactions``   the table of its states and events, and its record
``events``         how each event changes the record
``sinks``          the events that only sinks use
"""

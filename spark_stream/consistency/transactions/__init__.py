"""A transaction's life, beyond one partition.

``transactions``   the table of its states and events, and its record
``events``         the change of the record by each event
``sinks``          the events that only sinks use
"""

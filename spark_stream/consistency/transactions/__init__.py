"""A transaction's life, beyond one partition.

``transactions``   the table of its states and events, and its record
``events``         what each event makes of the record
``announcements``  which consumers' positions a commit is going to move
``sinks``          what only sinks ask of a transaction
"""

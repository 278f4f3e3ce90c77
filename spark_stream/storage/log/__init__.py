"""A partition's segments as one log.

``log``          the log
``replica_log``  what a partition needs of it
``opening``      makes a log's directory good before it is used
``looking``      what the files of a segment tell; ``recovery``: what of a log is valid
``reading``      from a range of offsets to few, well-sized Arrow batches
``locating``     which files have an entry, and the first record at or after a time
``truncation``   cuts a log back, or empties it; ``tails``: what that leaves in a file
``kept``         batches that a broken log still has
``retention``    when a log begins a new segment, removes old ones, and forces itself
``endings``      which batches are aborted
``damage``       what is known to be damaged
``committed``    remembered high watermarks
"""

"""A partition's segments as one log.

``log``          the log
``opening``      repairs a log's directory before the log is used
``looking``      what the files of a segment say; ``recovery``: which part of a log is valid
``reading``      from a range of offsets to few, well-sized Arrow batches
``locating``     which files have an entry, and the first record at or after a time
``truncation``   cuts a log back, or empties it; ``tails``: bytes that this leaves in a file
``kept``         batches that a damaged log gave up, kept until it has them again
``retention``    when a log begins a new segment, removes old ones, and forces itself
``endings``      which batches are aborted
``damage``       what is known to be damaged
``committed``    remembered high watermarks
"""

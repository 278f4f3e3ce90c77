"""A partition's segments as one log.

``log``              the log
``recovery``         opens a log: finds its valid part and repairs its directory
``segment_files``    the content of a segment's files, before anything is changed
``reading``          reads by offset, and look-ups by entry and by time
``truncation``       removes the end of a log, or all of it
``retention``        the times at which a log rolls, removes old segments and is flushed
``damage``           damaged entries, and the files that damage cut out of a log
``high_watermarks``  stored high watermarks
"""

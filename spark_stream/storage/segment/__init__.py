"""One segment: two files, batches and the table of their entries.

``segment``         a closed segment
``active_segment``  the last segment of a log, which takes appends
``min_max_files``   min/max statistics of a segment's batches, in a file beside it
``filtering``       filtered reads, and the batches that they skip
``checks``          checks of a segment's bytes on the disk
"""

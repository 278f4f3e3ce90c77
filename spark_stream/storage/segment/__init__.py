"""One segment: two files, batches and the table of their entries.

``segment``        a segment that is read
``active``         the segment that grows
``extreme_files``  the least and greatest values of a segment's columns, in a file beside it
``filtering``      which batches of a segment a filtered read can leave out
``checking``       reads a segment again, to find damage
"""

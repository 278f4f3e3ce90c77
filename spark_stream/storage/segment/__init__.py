"""One segment: two files, batches and the table of their entries.

``segment``        a segment that is read
``active``         the one that grows
``extreme_files``  the least and greatest values of its columns, in a file beside it
``filtering``      which of its batches a filtered read can leave out
``checking``       reads it again, to find damage
"""

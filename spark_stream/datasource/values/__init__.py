"""What options and offsets of a query mean, as values.

``offsets``          streaming offsets, and the ranges between them
``limits``           the limits of micro-batches and of tasks
``content``          the number of rows that were written, and a digest of them
``earlier_content``  the digest that earlier releases recorded
"""

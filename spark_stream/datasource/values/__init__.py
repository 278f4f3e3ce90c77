"""The values of a query's options and offsets, and of the content that it writes.

``offsets``          streaming offsets, and the ranges between them
``limits``           the limits of micro-batches and of tasks
``content``          the number of rows that were written, and a digest of them
``earlier_content``  the digest that earlier releases recorded
"""

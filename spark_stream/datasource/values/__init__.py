"""What options and offsets of a query mean, as values.

``offsets``    streaming offsets, and the ranges between them
``selection``  which topics a query reads
``limits``     what a micro-batch takes at least and at most; ``sharing``: of a backlog
``tasks``      which ranges a Spark task reads
``content``    how many rows were written, and a digest of them
"""

"""Kafka's record batches (message format 2) as Arrow, without a loop over records where possible.

``batches`` has the header of a batch, its checksum and its compression. ``decoding`` and
``encoding`` convert its records. All sizes and counts in bytes from a client are checked.

Source: https://kafka.apache.org/documentation/#messageformat, KIP-98 (message format 2).
"""

"""The bytes of a log.

``codec``       Arrow batches to IPC bytes and back, checksums
``message``     an encoded batch, in one piece or in several
``chunks``      encoded batches that are read together
``stored``      entries as they go from one replica to another, and when two are the same
``log_format``  what a log needs to know of its topic
``extremes``    the least and greatest values of a batch's columns
"""

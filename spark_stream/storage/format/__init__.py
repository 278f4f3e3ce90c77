"""The bytes of a log.

``codec``       Arrow batches to IPC bytes and back, checksums
``stored``      entries as one replica sends them to another, and chunks: results of a read
``log_format``  what a log needs to know of its topic
``extremes``    the least and greatest values of a batch's columns
"""

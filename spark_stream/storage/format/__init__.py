"""The bytes of a log.

``codec``       Arrow batches to IPC bytes and back, checksums
``stored``      entries as one replica sends them to another, and chunks: results of a read
``log_format``  the topic's properties that a log needs, and batches ready to be appended
``min_max``     min/max statistics of a batch's columns
"""

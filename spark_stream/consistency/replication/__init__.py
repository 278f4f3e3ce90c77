"""Replication of a log from its leader to its followers.

``bounds``    log end, high watermark and last stable offset, and their transitions
``follower``  a follower's reaction to its leader's answer and frames, and its reads
``epochs``    leader epochs of a log, the common part of two logs, lost records of a reader
``promises``  leading without the metadata store
"""

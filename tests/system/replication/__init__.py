"""Replication of broker processes that are killed, stopped, paused and partitioned."""

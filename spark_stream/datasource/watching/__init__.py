"""Queries as they run.

``lag``       how far a query is behind, from its progress
``listener``  watches queries: their lag in the driver's log, and as metrics
``metrics``   what Prometheus may know of queries
``progress``  progress bars for queries and batch jobs
"""

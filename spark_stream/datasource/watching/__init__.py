"""Queries as they run.

``lag``       how far a query is behind, from its progress
``listener``  watches queries: their lag in the driver's log, and as metrics
``progress``  progress bars for queries and batch jobs
"""

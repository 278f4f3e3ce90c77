"""Benchmarks: ``make bench``. What is measured is always next to its ceiling, in the same run.

Machines are shared and drift: the ratios hold, absolute figures mean little. Nothing here is a
test.
"""

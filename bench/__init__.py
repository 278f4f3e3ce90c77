"""Benchmarks: ``make bench``. Each figure is next to its ceiling, measured in the same run.

Machines are shared and drift: the ratios hold, absolute figures mean little. Nothing here is a
test.
"""

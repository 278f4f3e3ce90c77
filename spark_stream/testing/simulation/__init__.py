"""Runs of brokers and clients in which one seed decides everything: order, time, faults.

``clock``     time and names from a seed
``schedule``  who goes on next
"""

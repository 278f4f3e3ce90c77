"""The commands of ``isolog``, one module each, and what only one of them needs.

``broker``        broker start, stop, status; the broker process of a directory
``topic``         topic create, list, describe, alter, delete
``transactions``  transactions list, describe, abort; sinks list, delete
``produce``       records in; in a transaction all of them or none
``consume``       records out: up to an end, or without end
"""

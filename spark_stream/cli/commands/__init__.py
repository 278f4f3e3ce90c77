"""The commands of ``isolog``, one module each, and what only one of them needs.

``broker``        broker start, stop, status
``background``    the broker process of a directory: start it, find it, end it
``topic``         topic create, list, describe, alter, delete
``transactions``  transactions list, describe, abort
``sinks``         sinks list, delete
``produce``       records in
``sending``       an input's records to the leaders; in a transaction all of them or none
``consume``       records out
``ranges``        which offsets to read, and how: up to an end, or without end
"""

"""The commands of ``isolog``, one module each, and what only one of them needs.

``broker``        broker start, stop, status
``background``    the process behind a directory: started, found, ended
``topic``         topic create, list, describe, alter, delete
``transactions``  transactions list, describe, abort
``sinks``         sinks list, delete
``produce``       records in
``sending``       an input's records to the leaders; all of them or none in a transaction
``consume``       records out
``ranges``        which offsets to read, and reading them: to an end, or on and on
"""

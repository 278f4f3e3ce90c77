"""Calls: one message in, one message out.

``running``  runs a call, if its caller may make it
``context``  the parts of the broker that calls act on, and the handler of each call
``topics``, ``transactions``, ``consumers``, ``cluster``, ``access``, ``lakes``  the handlers
``mapped``   the places of records, for readers on the same machine
"""

"""Calls: one message in, one message out.

``running``       runs a call, if its caller may make it
``context``       what the calls act on, and which function handles which call
``topics``, ``transactions``, ``consumers``, ``cluster``, ``access``  the handlers
``mapped``        the places of records, for readers on the same machine
"""

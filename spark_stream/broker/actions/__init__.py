"""Short requests: one message in, one message out.

``table``         which method carries out which action
``context``       what actions act on
``topics``, ``transactions``, ``consumers``, ``cluster``  carry them out
``mapped``        where records lie, for readers on the same machine
"""

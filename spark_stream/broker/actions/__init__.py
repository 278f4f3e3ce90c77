"""Short requests: one message in, one message out.

``table``         which method carries out which action
``here``          what actions act on
``topics``, ``transactions``, ``consumers``, ``cluster``, ``leaders``  carry them out
``cluster_health`` what is wrong with a cluster, and what to do about it
``mapped``        where records lie, for readers on the same machine
"""

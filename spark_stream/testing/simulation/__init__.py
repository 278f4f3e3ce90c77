"""The world that a broker meets, made of memory and chance: one seed is one run.

``clock``     time and names from a seed
``schedule``  who goes on next
``disk``      files that tear, forget what was not forced, refuse, fill up and rot
``list_log``  a partition's log in a list, for runs in which the files are not the question
``store``     a metadata store in memory
``leases``    leases of brokers in memory
"""

"""The worker of a lake: a client of the brokers that writes the tables.

``driver``  carries out the steps of a round: cuts, rows, versions
``worker``  rounds in a loop, merges of small files, recorded progress
``iceberg`` the tables in an Iceberg catalog, over the same files
``counts``  counts and series of a worker
``status``  tables beside the log, cuts, and files to remove, for people
"""

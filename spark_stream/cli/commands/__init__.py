"""The commands of ``isolog``.

``broker``        broker start, stop, status, and the broker process of a directory
``topic``         topic create, list, describe, alter, move, elect, trim, delete
``transactions``  transactions list, describe, abort, and sinks list, delete
``produce``       write records, in a transaction all or none
``consume``       print records, up to an end or without end
``consumers``     consumers list, describe, reset, delete
``access``        user, token, acl and quota
``cluster``       cluster status, decommission, backup, restore and others
``console``       serve the web page of a cluster
``kafka_gateway`` serve Kafka's clients
``lake``          lake create, run, status, versions, clean, drop
``sql``           query topics and their tables with DuckDB
``certs``         certs create
"""

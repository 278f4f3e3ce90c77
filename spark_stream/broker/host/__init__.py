"""The replicas of a broker.

``host``          the replicas of the broker, and the lookup of those that it leads
``hosted_topic``  a topic as a broker has it, with its folders and logs
``contact``       the broker's contact with the metadata store, and its limits in an outage
``proposals``     in-sync replicas on their way to the partitions' records
``upkeep``        housekeeping and fsyncs of the partitions in which something is due
"""

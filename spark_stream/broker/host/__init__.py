"""The replicas of a broker.

``host``          which replicas it has, and how calls find those that it leads
``hosted``        a topic as a broker has it, with its folders and logs
``contact``       whether a broker may rely on what it knows while the metadata store is away
``proposals``     in-sync replicas on their way to the partitions' records
``upkeep``        housekeeping of the partitions in which something is due
"""

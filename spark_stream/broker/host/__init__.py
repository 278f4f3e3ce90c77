"""The replicas of a broker.

``host``          which replicas it has, and how calls find those that it leads
``hosted``        a topic as a broker has it
``folders``       the directories of topics: none takes the place of one that is lost
``proposals``     in-sync replicas on their way to the partitions' records
``upkeep``        housekeeping of partitions, those of which something is due
"""

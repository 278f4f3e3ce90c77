"""Who leads a partition, who has its replicas, who is in sync.

``partition_record``  who leads a partition, in which epoch, and who is in sync
``election``          every change of that record
``assignment``        which brokers get the replicas of a partition
``balance``           which partitions should go back to their preferred leaders
``damage``            what happens to a replica whose log is damaged
``withdrawal``        when a leader on a slow or full disk gives up
"""

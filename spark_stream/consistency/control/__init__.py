"""Which broker leads a partition, which brokers have its replicas, and which are in sync.

``partition_record``  who leads a partition, in which epoch, and who is in sync
``election``          every change of that record
``assignment``        which brokers get the replicas of a partition
``balance``           which partitions should go back to their preferred leaders
``damage``            whether a broker with a damaged log leaves, waits or stays
``withdrawal``        when a leader on a slow or full disk hands over
"""

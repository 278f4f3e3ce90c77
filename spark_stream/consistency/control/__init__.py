"""Which broker leads a partition, which brokers have its replicas, and which are in sync.

``partition_record``  the leader, its epoch and the ISR; evidence that a leader is alive
``election``          every change of that record
``assignment``        which brokers get the replicas of a partition
``handover``          when a broker gives up its leadership or its place in the ISR
"""

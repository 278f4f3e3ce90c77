"""Control of a partition: its leader, its replicas and its in-sync replicas (ISR).

``partition_record``  the leader, its epoch and the ISR, and evidence that a leader is alive
``election``          every change of that record
``assignment``        the assignment of replicas to brokers
``handover``          the conditions under which a broker gives up its leadership or leaves the ISR
"""

"""A broker's place in its cluster.

``identity``      its directory, the metadata store that belongs to it, and proofs of identity
``members``       the brokers of the cluster, alive and dead, and this broker's own lease
``registration``  its record: its address, the generation of its logs, and damaged replicas
``controlling``   its work as the controller
``handover``      hands leadership over: before it ends, and to preferred leaders
``scrubbing``     reads all segments again and again, to find damage
"""

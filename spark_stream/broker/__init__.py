"""One broker process. It ties the log, the metadata and the wire together.

The process:

``process``        start, serve, stop
``background``     what the process does again and again, by threads
``core``           the parts of a broker, wired once: for the process, the simulator and tests
``network``        its ways to other brokers over Flight
``config``         what an operator may set
``lock``           one broker a directory, and how clients find it
``stores``         opens the directory with the metadata store that belongs to it
``activity``       whether anybody uses the broker
``memory``         how much memory batches may take; ``spare_memory`` gives free memory back

Its place in the cluster:

``identity``       which broker this is, and whether a caller is a broker of the same cluster
``members``        the other brokers: who is registered, who is alive
``standing``       what the others are told of this one: its address, the generation of its logs
``tenure``         its lease: it leads only while that lasts
``controlling``    what it does as the controller
``handover``       hands over what it leads: before it ends, and to preferred leaders
``placing``        which brokers get the replicas of a new partition

Its replicas:

``host``           which replicas it has, and how calls find those that it leads
``folders``        the folders of topics: none takes the place of one that is lost
``partition``      one partition: a log, a core, a lock, who waits, and the parts below
``partition_state`` what these parts share, under the partition's lock
``partition_appends`` what producers ask of the leader
``partition_transactions`` joins and ends of transactions in a partition
``replica_role``   how a replica takes its role from the partition's record
``following``      what a replica takes from its leader
``followers``      what a leader gives its followers
``sessions``       the followers of a replica that leads, as it tells them of news
``partition_lock`` a partition's lock, and work that is left to its holder
``callers``        who waits for a partition: appends and reads
``recent``         batches that followers do not have yet, in memory
``proposals``      in-sync replicas on their way to the partitions' records
``links``          partitions as the streams of replication see them
``replication``    the streams on which entries go from leaders to followers
``scrubbing``      reads segments again and again; ``damaged``: what it does about damage
``upkeep``         keeps partitions in order; ``housekeeping``: which of them in a round
``inspection``     which records of a batch are bad, for whole batches
``outcomes``       what a partition answers to an append

What takes several steps:

``driver``         drives scripts; ``step_table`` says what each step does, ``peers`` takes steps to
                   other brokers, ``steps`` are the steps as they travel
``topics``         topics made, altered and deleted
``transactions``   transactions as the broker looks after them by itself

Calls:

``serving``        the streams of the protocol; ``pool``: the threads that serve them
``flight``         the facade for clients of Arrow Flight
``appends``        a room: streams of appends, from a frame to its acknowledgement
``fetching``       a fetch; ``fetch_task``: what drives one, and lets it wait without a thread
``actions``        an action; ``topic_actions``, ``leader_actions``, ``cluster_actions`` and
                   ``transaction_actions``, ``consumer_actions`` carry it out
``here``           what actions act on
"""

"""One broker process. It ties the log, the metadata and the wire together.

``process``      start, serve, stop; ``background``: what it does again and again, by threads
``core``         the parts of a broker, wired once: for the process, the simulator and tests
``network``      its ways to other brokers
``config``       what an operator may set

Rooms, each of which imports only those above it:

``partition``    one partition: its log, its rules, its lock, and who waits for it
``host``         which replicas this broker has, and their files
``node``         this broker and the cluster: identity, lease, controller, handover
``scripting``    carries out what takes several steps, here and on other brokers
``replication``  the streams on which entries go from leaders to followers
``actions``      short requests: topics, transactions, consumers, the cluster
``serving``      the streams of the protocol, and the threads that serve them
``flight``       Arrow Flight for clients in other languages, loaded on demand
"""

"""One broker process. It connects the log, the metadata and the protocol.

``process``      start, serve and stop
``background``   the repeated tasks of the process
``core``         the parts of a broker, wired once: for the process, the simulator and tests
``network``      its connections to other brokers
``config``       its configuration
``connections``  the sockets, TLS files and store that the configuration names

Rooms, each of which imports only those above it:

``partition``    one partition: its log, its rules, its lock, and waiting callers
``host``         the replicas of this broker, and their files
``node``         this broker and the cluster: identity, lease, controller, handover
``scripting``    drives scripts, which have steps here and on other brokers
``replication``  the streams on which entries go from leaders to followers
``actions``      calls: topics, transactions, consumers, the cluster
``serving``      the streams of the protocol, and the threads that serve them
``flight``       Arrow Flight for clients in other languages, loaded on demand
"""

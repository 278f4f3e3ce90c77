"""What client and broker both know. Control messages are JSON, data is Arrow.

``messages``       tickets, append envelopes, acknowledgements, bodies of actions
``sink_messages``  what a sink asks of a broker
``actions``        every action with its messages: the one table
``flight``         errors as Flight carries them
``schemas``        the default schema, which types a topic may have, how a batch is made to fit
``limits``         every limit in one place, with its reason
``type_names``     the names of types as users read them
``allocator``      how a process is told how much memory Arrow may take
``sockets``        this process's own connections: found, and ended
"""

"""What client and broker both know. Control messages are JSON, data is Arrow.

``messages``       append envelopes, acknowledgements, what is asked about topics
``fetch_messages``  tickets, and what comes with the records
``transaction_messages``, ``sink_messages``  what producers and sinks ask about transactions
``consumer_messages``  what is asked about consumers' names
``actions``        every action with its messages: the one table
``flight``         errors as Flight carries them
``limits``         every limit in one place, with its reason
``allocator``      how a process gets and keeps its memory
``methods``        the methods of the protocol's streams
"""

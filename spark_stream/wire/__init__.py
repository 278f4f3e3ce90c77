"""What client and broker both know. Control messages are JSON, data is Arrow.

``messages``  tickets, append envelopes, acknowledgements, actions
``flight``    errors as Flight carries them
``schemas``   the default schema, which types a topic may have, how a batch is made to fit
``limits``    every limit in one place, with its reason
"""

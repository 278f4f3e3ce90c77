"""One broker process. Ties the log, the metadata and the wire together; nothing else imports it.

``config``     what an operator may set
``lock``       one broker a directory, and how it is found
``inspection`` which records of a batch are bad, for whole batches
``partition``  one partition: its log, its leader's state, its producers, who waits for it
``transactions``  transactions carried out: decided in the store, marked in the partitions
``cuts``       one atomic cut through all partitions of a query
``refusals``   from what the rules refuse to the errors that users get
``host``       all topics and partitions of the broker
``appending``  a DoPut
``fetching``   a DoGet
``actions``    a DoAction; ``transaction_actions`` those on transactions
``service``    the Flight service: from calls to the four above
``process``    start, serve, stop
"""

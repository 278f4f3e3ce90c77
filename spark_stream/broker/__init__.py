"""One broker process. Ties the log, the metadata and the wire together; nothing else imports it.

``config``     what an operator may set
``lock``       one broker a directory, and how it is found
``inspection`` which records of a batch are bad, for whole batches
``partition``  one partition: its log, its leader's state, who waits for it
``host``       all topics and partitions of the broker
``appending``  a DoPut
``fetching``   a DoGet
``actions``    a DoAction
``service``    the Flight service: from calls to the four above
``process``    start, serve, stop
"""

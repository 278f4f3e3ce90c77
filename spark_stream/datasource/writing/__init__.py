"""The sink of ``format("isolog")``.

``writer``        the batch and the streaming sink
``task``          the writing of a task's rows
``routing``       rows to topics and partitions, with the look-up or creation of topics
``bad_rows``      rows that do not fit their topic, and their dead letters
``transactions``  the transaction of a micro-batch: branches, decision, renewal
``identity``      the transactional id, query, run, micro-batch, driver and log of a sink
"""

"""The sink of ``format("isolog")``.

``writer``     the batch and the streaming sink
``task``       how a task writes its rows; ``routing``: rows to topics and partitions
``targets``    the topics that rows go to: found, or made, and checked
``bad_rows``   which rows do not fit their topic; ``dead_letters``: what is written of them
``branches``   the branches of a micro-batch's transaction, and the driver's decision
``identity``   under which transactional id a task writes
``driver``     which driver planned a micro-batch, so that it can give it up
``renewal``    the deadline of a transaction, renewed while its tasks run
``belonging``  which log a streaming sink's checkpoint is of
"""

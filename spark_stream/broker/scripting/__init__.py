"""What takes several steps, here and on other brokers (``spark_stream/scripts``).

``driver``        drives scripts
``step_table``    what each step does on this broker
``step_messages`` steps as they travel; ``peers`` takes them to other brokers
``joining``       how a batch of a transaction gets into a partition
``topics``        topics made, altered and deleted
``coordinator``   transactions that the broker looks after by itself
"""

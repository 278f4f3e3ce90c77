"""How a client finds a broker, starts one and calls it.

``link``        calls to one broker
``connection``  calls to a log, by any of its brokers, with retries and a deadline
``routes``      who leads which partition: what is believed of what brokers say
``router``      finds the leaders of partitions
``watch``       ends calls whose broker is silent and leads no more
``embedded``    the broker of a directory: found, or started
"""

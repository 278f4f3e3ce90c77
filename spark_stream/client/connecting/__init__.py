"""How a client finds a broker, starts one and calls it.

``connection``  calls to a broker, with retries and a deadline
``embedded``    the broker of a directory: found, or started
"""

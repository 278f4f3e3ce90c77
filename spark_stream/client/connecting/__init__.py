"""How a client finds a broker, starts one, calls it, and ends a call that nobody answers.

``connection``  calls to a broker, with retries and a deadline
``embedded``    the broker of a directory: found, or started
``sockets``     ends this process's own connections to an address
"""

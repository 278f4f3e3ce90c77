"""Arrow Flight for clients in other languages. A broker loads it only if ``flight_listen`` is set.

``facade``  the Flight server: DoPut appends, DoGet fetches, DoAction runs a call
"""

"""Brokers, their surroundings and their clients in one process: one seed is one run.

``docs/simulator.md`` describes how to run, read and extend it.

``runs``        one run, many runs, and the smallest run that fails in the same way
``form``        the seed and the actors of a run
``world``       a run from its first event to its last check
``observer``    the changes after each event, for the history and the invariants
``broker``      a broker's own parts on a simulated machine
``driving``     the drivers of a broker's scripts
``connections`` connections between brokers: bytes that are split, late, or lost
``clients``     the requests to brokers
``faults``      the faults of a run
``invariants``  the properties that hold nevertheless
``history``     the history of a run, with all that its parts cannot see

Below those are the parts of a host: ``clock`` (time and names), ``schedule`` (the order of tasks),
``network``, ``store`` and ``leases``, and ``disk`` with ``logs`` over it.
"""

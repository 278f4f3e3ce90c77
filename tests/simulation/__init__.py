"""Brokers, their surroundings and their clients in one process: one seed is one run.

``docs/simulator.md`` tells how to run it, and how to read and to extend it.

``runs``        one run, many runs, and the smallest that fails in the same way
``form``        who takes part in a run, from its seed
``world``       a run from its first event to its last check
``looking``     who looks on, after each event
``broker``      a broker's own parts on a simulated machine
``driving``     who takes the steps of its scripts
``connections`` connections between brokers: bytes that are split, late, or lost
``clients``     what is asked of brokers
``faults``      what goes wrong
``invariants``  what holds nevertheless
``history``     what happened, as nobody in the run sees it

Below those lies what stands for a host: ``clock`` (time and names), ``schedule`` (who goes on),
``network``, ``store`` and ``leases``, ``disk`` with ``logs`` over it.
"""

"""The core of a replica: events in, effects out.

``replica``    the core; ``effects``: what its caller has to do after an event
``progress``   what a leader knows of its followers: in-sync replicas, high watermark
``waiting``    who waits for a bound to pass an offset
``admission``  which records of a message are kept when one of them is bad
``producers``  duplicates, order and fencing of a partition's producers
``joins``      a leader's promises that transactions may write to its partition
``undecided``  which transactions hold a partition's last stable offset back
``extents``    which offsets each transaction of a partition spans
``atomic``     cuts that have no transaction on both sides
"""

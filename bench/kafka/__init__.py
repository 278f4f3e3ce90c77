"""isolog next to a real Kafka, in one run: ``make bench-kafka``.

``jars`` fetches Kafka and Spark's connector from Maven Central. ``broker`` runs Kafka, and ``ours``
isolog. ``world`` has both, with the same records in both. ``turns`` measures in turns. The
measurements are in ``reads``, ``writes``, ``typed``, ``small``, ``clients`` and ``costs``. ``page``
writes docs/benchmarks.md from the results. ``command`` is ``python -m bench kafka``.
"""

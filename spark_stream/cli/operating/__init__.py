"""Commands for operators: inspection, load, monitoring, setup.

``stored_logs``  log dump, verify: the files of a log, without a broker
``stored_rows``  their segments, entries and records as batches of Arrow
``bench``        a load for a cluster, with its throughput and latencies
``load``         the producers and consumers of the load, and percentiles of durations
``top``          live view of a cluster in a terminal
``top_frames``   rates and trends from samples of a cluster
``setup``        config example: the files of ``conf/``, and prepare-spark: bytecode for workers
"""

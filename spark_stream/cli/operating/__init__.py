"""The commands for those who run a cluster and look into it.

``stored_logs``  log dump, verify: the files of logs, without a broker
``bench``        a load for a cluster, and its throughput and latencies
``load``         the producers and consumers of that load, and percentiles of durations
``top``          the cluster live in a terminal
``frames``       what some looks at a cluster tell: rates and trends
``setup``        config example: the files of ``conf/``; prepare-spark: bytecode for its workers
"""

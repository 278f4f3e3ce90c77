"""What is Spark's: types, sessions, processes, errors.

``types``    Spark's types and Arrow's
``session``  one connection a process, made after the fork
``place``    where the log is; what a path means
``host``     this host, the JVM of Spark's driver, and which Python worker this process is
``travel``   what Spark sends to a worker, which says there what is missing
``tables``   the options of a catalog's table, kept with its columns
``spark_errors``  our errors as Spark shows them
"""

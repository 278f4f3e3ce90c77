"""What is Spark's: types, sessions, processes, errors.

``types``    Spark's types and Arrow's
``session``  one connection a process, made after the fork
``place``    where the log is; what a path means
``workers``  this Python worker: host, driver's JVM, kind; our errors as Spark shows them
``travel``   what Spark sends to a worker, which says there what is missing
"""

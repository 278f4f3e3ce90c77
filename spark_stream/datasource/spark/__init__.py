"""The interface to Spark: types, sessions, processes, errors.

``types``    Spark's types and Arrow's
``place``    the place of the log, and the meaning of a path
``session``  one connection per process, made after the fork
``workers``  this Python worker: host, driver's JVM, kind, and our errors as Spark shows them
``pickling`` the objects that Spark sends to workers, which report missing modules
"""

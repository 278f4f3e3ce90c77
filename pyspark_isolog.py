"""Makes `format("isolog")` known to Spark, with no `spark.dataSource.register` call.

Spark imports every top-level module whose name starts with `pyspark_` and registers the data source
that it finds there as `DefaultSource`, under that class's own `name()`. This module is here for its
name alone: users have no need to import it.
"""

from spark_stream.datasource import IsologDataSource as DefaultSource

__all__ = ["DefaultSource"]

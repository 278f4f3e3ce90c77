"""The source of ``format("isolog")``.

``reader``         the batch source, the filters that Spark pushes to it, and the reading of ranges
``stream_reader``  the streaming source
``planning``       topics, schemas and offsets as a query needs them
``starts``         where a query starts and ends by its options
``naming``         queries that have a consumer's name
``losses``         records that a query should read and that are gone, and what it does then
"""

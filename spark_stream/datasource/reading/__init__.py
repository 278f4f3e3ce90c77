"""The source of ``format("isolog")``.

``reader``         the batch source, the filters that Spark pushes to it, and the reading of ranges
``stream_reader``  the streaming source
``planning``       topics, schemas and offsets for a query
``bounds``         the start and the end of a query, from its options
``named_query``    queries that have a consumer's name
``losses``         lost records of a query's range, and the query's reaction
"""

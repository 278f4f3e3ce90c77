"""The source of ``format("isolog")``.

``reader``         the batch source, and how a range is read
``stream_reader``  the streaming source
``pushing``        filters that Spark hands over
``planning``       topics, schemas and offsets as a query needs them
``starts``         where a query starts and ends by its options
``naming``         queries that have a consumer's name
``losses``         records that a query should read and that are gone, and what it does then
``nulls``          whether a query may say NOT NULL
"""

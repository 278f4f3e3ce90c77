"""Texts in Spark's SQL: filters, and schemas as DDL.

==============  ==================================================================
``tree``        a predicate as written: plain values, and its text
``grammar``     a predicate's text to its tree, by sqlglot
``literals``    the values in a text, as Spark reads them
``comparisons`` the comparison for two types
``predicates``  bound filters: Arrow's masks, and the batches to skip
``filters``     binds a text to the columns of a topic's partition
``ddl``         a schema's text to an Arrow schema and back
==============  ==================================================================

sqlglot is imported at the first text: it takes a tenth of a second, which a reader without a
filter does not spend.
"""

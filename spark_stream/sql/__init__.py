"""Texts in Spark's SQL: what a filter says, and which columns a schema has.

==============  ==================================================================
``tree``        a predicate as written: plain values
``grammar``     a predicate's text to its tree, by sqlglot
``literals``    the values that a text may name, as Spark understands them
``binding``     resolves a tree against a topic's columns
``comparing``   chooses the comparison for two types
``patterns``    chooses the function for a LIKE
``predicates``  bound filters: Arrow's masks, and the rule that skips batches
``filters``     from a text to the filter of a partition
``writing``     a tree back to a text
``ddl``         a schema's text to an Arrow schema and back
==============  ==================================================================

sqlglot is imported at the first text: it takes a tenth of a second, which a reader without a
filter does not spend.
"""

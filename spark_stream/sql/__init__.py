"""Texts in Spark's SQL: what a filter says, and which columns a schema has.

==============  ==================================================================
``tree``        a predicate, as it was written: plain values
``grammar``     a predicate's text to its tree, by sqlglot
``literals``    the values that a text may name, as Spark understands them
``binding``     a tree and a topic's columns: what the one means for the other
``comparing``   which comparison of which types that is
``patterns``    what a LIKE is
``predicates``  what binding gives: Arrow's masks, and the rule that skips batches
``filters``     from a text to what it means for a partition
``writing``     a tree back to a text
``ddl``         a schema's text to an Arrow schema and back
==============  ==================================================================

sqlglot is imported when a text is to be read and not before: a tenth of a second that a reader
without a filter does not spend.
"""

"""Texts in Spark's SQL: what a filter says, and which columns a schema has.

==============  ==================================================================
``tree``        a predicate, as it was written: plain values
``filters``     from a text to its tree (remembered), and to what it means for a topic
``grammar``     a predicate's text to its tree, by sqlglot
``literals``    the values that a text may name, as Spark understands them
``binding``     a tree and a topic's columns: which comparison of which types
``predicates``  what binding gives: Arrow's masks, and the rule that skips batches
``ordering``    values as keys in their order, with which batches are skipped
``ddl``         a schema's text to an Arrow schema and back
==============  ==================================================================

Only ``grammar`` and ``ddl`` import sqlglot, and nothing imports them before a text is to be read:
a tenth of a second that a reader without a filter does not spend.
"""

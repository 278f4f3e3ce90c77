"""Texts in Spark's SQL: what a filter says.

==============  ==================================================================
``tree``        a predicate, as it was written: plain values
``grammar``     a predicate's text to its tree, by sqlglot
``literals``    the values that a text may name, as Spark understands them
``binding``     a tree and a topic's columns: which comparison of which types
``predicates``  what binding gives: Arrow's masks, and the rule that skips batches
``filters``     from a text to what it means for a partition
==============  ==================================================================

Only ``grammar`` imports sqlglot, and nothing imports it before a text is to be read: a tenth of a
second that a reader without a filter does not spend.
"""

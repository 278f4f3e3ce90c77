"""Schemas of topics and types of columns: what client, broker and storage agree on.

``schemas``    the default schema, which types a topic may have, how a batch is made to fit
``evolution``  how a topic's schema may change
``types``      the names of types, and the types that a topic stores
``values``     casts, forbidden nulls and sizes of columns of values
``keys``       the key columns of a topic
``texts``      values as text and as JSON, dates and times from text
"""

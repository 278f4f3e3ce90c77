"""Schemas of topics and types of columns, shared by client, broker and storage.

``schemas``    the default schema, the check of a new schema, the fit of a batch
``evolution``  the allowed changes of a topic's schema
``types``      the names of types, and the types that a topic stores
``values``     casts, forbidden nulls and sizes of columns of values
``keys``       the key columns of a topic
``texts``      values as text and as JSON, dates and times from text
"""

"""Schemas of topics and types of columns: what client, broker and storage agree on.

``schemas``       the default schema, which types a topic may have, how a batch is made to fit
``evolution``     how a topic's schema may change
``stored_types``  types that are stored as another type
``type_names``    the names of types as users read them
``casting``       values of one type as another
``not_null``      nulls within values whose type takes none
``keys``          which columns are a topic's key
``record_sizes``  how many bytes records have
``texts``         values as text and as JSON; ``moments``: dates and times
``nearest``       the known name nearest to one that is not known
"""

"""Text for people and for programs: records, topics, values.

``formats``  batches as lines, JSON, CSV, a table, an Arrow stream
``topics``   topics as tables and as JSON
``texts``    names, numbers and durations as text for tables, values as JSON
"""

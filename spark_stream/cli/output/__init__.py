"""Records, topics, brokers and transactions, printed for people and for programs.

``formats``            batches as lines, JSON, CSV, a table, an Arrow stream
``show``               topics and brokers as tables and as JSON
``show_transactions``  transactions as tables and as JSON
"""

"""Scripts (``spark_stream/scripts``) at a broker: procedures with steps here and on other brokers.

``driver``       drives scripts, and carries out steps on this broker
``peers``        has steps carried out by other brokers
``topics``       topics made, altered and deleted, and the placement of their replicas
``coordinator``  sweeps of transactions, and joins of append streams
"""

"""The metadata of a cluster: what all brokers must agree on. Knows ``consistency`` only.

``store``   the Protocol: records with versions, changed by compare-and-set
``sqlite``  the store for brokers on one host
``topics``  topics as records of the store
``transactions``  transactions, and named consumers' positions, as records
``numbers`` numbers that nobody else gets
"""

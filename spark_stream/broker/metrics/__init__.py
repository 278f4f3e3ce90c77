"""What a broker shows to Prometheus, and to probes of its health.

``changes``   counts elections and changes of in-sync replicas, as the broker sees the records
``scrape``    what is read from the broker's state for one scrape
``table``     all series: name, kind, meaning, labels, and how each is read
``endpoint``  the pages: `/metrics`, `/metrics/all`, `/health/live`, `/health/ready`

A scrape takes no partition's lock, and asks the metadata store nothing that the broker does not
know already.
"""

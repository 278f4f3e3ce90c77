"""What a broker shows to Prometheus, and to probes of its health.

``scrape``    what is read from the broker's state for one scrape
``series``    all series: name, kind, meaning, labels, and how each is read
``endpoint``  the pages: `/metrics`, `/metrics/all`, `/health/live`, `/health/ready`

A scrape takes no partition's lock, and asks the metadata store nothing that the broker does not
know already.
"""

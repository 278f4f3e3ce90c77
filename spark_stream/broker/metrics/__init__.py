"""The broker's pages for Prometheus, and for probes of its health.

``scrape``    reads the broker's state for one scrape
``series``    all series: name, kind, meaning, labels, and value
``endpoint``  the pages: `/metrics`, `/metrics/all`, `/health/live`, `/health/ready`

A scrape takes no partition's lock, and sends no request to the metadata store: it uses the records
that the broker has read already.
"""

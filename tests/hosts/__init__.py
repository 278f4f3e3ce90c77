"""Hosts as network namespaces, with a network between them that can be cut, slow and lossy."""

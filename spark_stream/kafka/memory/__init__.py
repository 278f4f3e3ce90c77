"""The memory of a gateway: its limits, and a cache of clients. The brokers have the state."""

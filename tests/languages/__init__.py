"""The examples in other languages, against real brokers."""

"""The requests of Kafka's administration clients: topics, their settings, and the cluster."""

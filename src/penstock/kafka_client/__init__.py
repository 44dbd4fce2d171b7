"""How to connect to Kafka and to a schema registry: the options that sources and sinks share, and client settings."""

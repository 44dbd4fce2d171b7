"""Schemas of Arrow fields for messages of sinks: Avro, JSON Schema, Protobuf, and those of Kafka Connect."""

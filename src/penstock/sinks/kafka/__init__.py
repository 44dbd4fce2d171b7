"""Sinks into Kafka topics."""

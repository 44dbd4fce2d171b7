"""Kafka as a source: what may be asked of it, and how that is said to its clients."""

"""Kafka as a source: its options, and their translation for the Kafka clients."""

"""Avro: schemas, plans from writer to reader schema, and the kernel that decodes messages with them."""

"""Avro: schemas, plans from a writer's to the reader's, and the kernel that walks messages by them."""

"""Protobuf: descriptors, plans by field number, and the kernel that decodes messages with them."""

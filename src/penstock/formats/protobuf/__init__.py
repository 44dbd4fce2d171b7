"""Protobuf: descriptors, plans by field number, and the kernel that walks messages by them."""

"""TEXT and BYTES: a message is one value."""

"""JSON: tokenize messages, and write tokens to columns that are specified, inferred, or defined by a JSON Schema."""

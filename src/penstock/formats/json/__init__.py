"""JSON: text into tokens, tokens into columns; columns given, inferred, or by JSON Schema."""

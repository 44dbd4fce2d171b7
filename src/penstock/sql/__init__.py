"""Penstock's SQL statements: grammar, error messages, completion, and name resolution in queries."""

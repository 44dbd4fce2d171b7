"""The change log: capture writes it; tables, queries and tails read it by range."""

"""The catalog of a home: sources, tables, requests, repairs and progress, stored in SQLite."""

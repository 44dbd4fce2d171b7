"""The replication connection and what it depends on: slot, publication, watermarks, heartbeats, and their checks."""

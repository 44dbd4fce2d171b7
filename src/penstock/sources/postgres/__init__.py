"""The Postgres source: capture over a logical replication slot (pgoutput), snapshots, preflight and check."""

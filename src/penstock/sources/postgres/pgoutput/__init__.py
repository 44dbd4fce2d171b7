"""Decoding of pgoutput: replication messages become chunks of the change log."""

"""CSV: one line of delimited fields per message."""

"""``FROM LOAD GENERATOR``: tables under a load that is drawn from a seed; no database is needed."""

"""``FROM FILE``: a growing folder of files as one table."""

"""``FROM FILE``: a folder of files that grows, as one table."""

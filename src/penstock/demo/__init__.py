"""The upstream database of ``penstock demo``: a small shop, a bank, and a load generator."""

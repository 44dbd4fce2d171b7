"""Integration with Spark: the session, the data source ``penstock``, and folding and overlay in Arrow."""

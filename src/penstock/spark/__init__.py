"""Integration with Spark: the session, the data source ``penstock``, and ranges of a log as DataFrames."""

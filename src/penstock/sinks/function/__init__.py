"""Sinks into a function: the user's code is called with the changes of a table, as a Spark DataFrame."""

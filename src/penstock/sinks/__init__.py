"""Sinks: changes of tables, written to other systems."""

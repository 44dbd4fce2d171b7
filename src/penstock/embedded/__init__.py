"""Servers that Penstock brings along, for the demo and the tests."""

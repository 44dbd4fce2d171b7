"""Servers that Penstock downloads and runs itself, for the demo and the tests."""

"""The status page at ``/``."""

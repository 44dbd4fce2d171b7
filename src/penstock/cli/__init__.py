"""The ``penstock`` command: one module per subcommand."""

"""``FROM LOAD GENERATOR``: tables with a load that is generated from a seed, without a database."""

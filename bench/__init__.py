"""Benchmarks: ``python -m bench NAME [--quick]``.

Each benchmark sets up its environment, alternates between its subject and its reference for several rounds, and prints
``ratio NAME x.xx`` last: the figure of its goal. Machines differ and are shared, so only ratios within one run are
comparable.
"""

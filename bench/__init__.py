"""Benchmarks, all alike: ``python -m bench NAME [--quick]``.

Each sets up all that it needs, runs its subject and its reference in turns over several rounds, and ends with the line
``ratio NAME x.xx``: the figure in which its goal is stated. Machines differ and are shared, so only ratios of one run
are comparable.
"""

"""Mutation check: introduce one defect on purpose, and show that the fast tier of the tests detects it.

::

    python -m tests.mutations                     every mutation, each against the tests that should catch it
    python -m tests.mutations NAME…               only these
    python -m tests.mutations --list              names, and the effect of each mutation
    python -m tests.mutations --keep-going        do not stop at the first mutation that survives
    python -m tests.mutations --whole NAME…       against the whole fast tier instead of the chosen tests

::

    the tree ─copy─▶ unmutated ─▶ all chosen tests once: they must pass, or the result is meaningless
        └────copy─▶ one mutation applied ─▶ its tests ─▶ one fails: caught │ all pass: SURVIVED      for each mutation

Each run gets a fresh copy of the tree in a temporary folder, with ``PYTHONPATH`` set to the ``src`` of the copy; child
processes and Spark's Python workers inherit that. The working tree is read once, at the start, and never changed.

Copies keep modification times, so that bytecode and compiled kernels (``__pycache__``) stay valid; those of the mutated
file are left out. A kernel that is inlined into another module is not recompiled there: mutate its caller instead.

Exit codes: 0 every mutation was caught; 1 a mutation survived; 2 the check itself failed (unknown name, a mutation that
no longer applies, tests that fail without a mutation, a mutation that breaks an import).

To add a mutation, append it to `tests.mutations.mutations`. `tests/test_mutations.py` checks that each one applies.
"""

"""The seed of tests with random input: the same in every run, unless PENSTOCK_TEST_SEED is set.

A run of the suite tests a change, so two runs on the same tree use the same input. To explore, set
``PENSTOCK_TEST_SEED=random`` (or a number, to repeat a run): Hypothesis and the tests that call `seed` then use other
input. A test that fails prints its seed.
"""

from __future__ import annotations

import os
import random

ASKED = os.environ.get("PENSTOCK_TEST_SEED", "0")
"""A number, or ``random``."""
EXPLORE = ASKED == "random"


def seed() -> int:
    """Return the seed for one test."""
    return random.SystemRandom().randrange(1 << 32) if EXPLORE else int(ASKED)

"""The seed of tests that draw their input: the same in every run, unless PENSTOCK_TEST_SEED says otherwise.

A run of the suite is a statement about a change, so two runs on the same tree draw the same input. To explore, set
``PENSTOCK_TEST_SEED=random`` (or a number, to repeat a run): Hypothesis and the tests below then draw other input. A
test that fails prints its seed.
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

"""Lookup tables between bytes and hex digits, for kernels."""

from __future__ import annotations

import numpy as np

__all__ = ["DIGIT", "NIBBLE"]

NIBBLE = np.full(256, 0xFF, np.uint8)
"""The value of a hex digit of either case; 0xFF for any other byte."""
NIBBLE[list(b"0123456789abcdef")] = range(16)
NIBBLE[list(b"ABCDEF")] = range(10, 16)

DIGIT = np.frombuffer(b"0123456789abcdef", np.uint8).copy()
"""The lowercase digit of a value below 16."""

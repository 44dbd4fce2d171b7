"""One noise less: Spark's planning processes that find nobody to flush to.

Spark plans a Python data source in a small Python process, reads the plan and hangs up. The process then flushes once
more, and PySpark's daemon prints a traceback of BrokenPipeError onto the user's terminal, about nothing. Every module
with a data source of ours is imported in that process, and calls `hush` there.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

__all__ = ["hush"]

_print_exc = traceback.print_exc


def hush() -> None:
    """In a process of PySpark's daemon, and only there, do not print a BrokenPipeError."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == "pyspark.daemon":
        traceback.print_exc = _print_unless_broken_pipe


def _print_unless_broken_pipe(*arguments: Any, **options: Any) -> None:
    if not isinstance(sys.exc_info()[1], BrokenPipeError):
        _print_exc(*arguments, **options)

"""Suppresses spurious BrokenPipeError tracebacks of Spark's planning processes.

Spark plans a Python data source in a small Python process, reads the plan and closes the connection. The process then
flushes once more, and PySpark's daemon prints a meaningless traceback of BrokenPipeError to the user's terminal. That
process imports every module with a Penstock data source, and each of them calls `silence_broken_pipes`.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

__all__ = ["silence_broken_pipes"]

_print_exc = traceback.print_exc


def silence_broken_pipes() -> None:
    """Stop printing BrokenPipeErrors if this process is a PySpark daemon; otherwise do nothing."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == "pyspark.daemon":
        traceback.print_exc = _print_unless_broken_pipe


def _print_unless_broken_pipe(*arguments: Any, **options: Any) -> None:
    if not isinstance(sys.exc_info()[1], BrokenPipeError):
        _print_exc(*arguments, **options)

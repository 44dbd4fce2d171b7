"""Lines that Spark's JVM prints, as events of the log. These tests need no Spark."""

from __future__ import annotations

import pytest

from penstock.spark.spark_output import spark_event

CANARY = "canary-4711"
TIME = "2026-11-18 10:00:00"


@pytest.mark.parametrize(
    ("line", "level", "text"),
    [
        (f"{TIME} spark WARN TaskSetManager: Lost task 0.0", "warning", "TaskSetManager: Lost task 0.0"),
        (f"{TIME} spark FATAL Utils: Uncaught", "error", "Utils: Uncaught"),
        (
            f"{TIME} spark ERROR Executor: failed: java.lang.NumberFormatException: For input string: {CANARY}",
            "error",
            "Executor: failed: java.lang.NumberFormatException",
        ),
        (
            f"{TIME} spark ERROR Executor: org.apache.spark.SparkNumberFormatException: [CAST] The value '{CANARY}'",
            "error",
            "Executor: org.apache.spark.SparkNumberFormatException",
        ),
        ("OpenJDK 64-Bit Server VM warning: x", "warning", "OpenJDK 64-Bit Server VM warning: x"),
        (
            f'Exception in thread "main" java.lang.IllegalStateException: {CANARY}',
            "warning",
            'Exception in thread "main" java.lang.IllegalStateException',
        ),
        ("# A fatal error has been detected by the Java Runtime", "debug", "# A fatal error has been detected"),
    ],
)
def test_line(line: str, level: str, text: str) -> None:
    found = spark_event(line)
    assert found is not None
    assert (found.level, found.startswith(text), CANARY in found) == (level, True, False)


@pytest.mark.parametrize("line", [f"ValueError: {CANARY}", "\tat org.apache.X.y(Z.java:1)", CANARY, "", "Caused by: x"])
def test_other_output_is_dropped(line: str) -> None:
    assert spark_event(line) is None

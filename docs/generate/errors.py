"""errors.md, from `errors.py`; what exit codes mean, stands here."""

from __future__ import annotations

import inspect

from docs.generate.markdown import code, table

from penstock import errors

__all__ = ["EXIT_CODES", "page"]

EXIT_CODES = {
    0: "Done. Also `penstock run` and `penstock tail` stopped by Ctrl-C.",
    1: "The answer is no: `penstock check` found that capture could not start, `penstock verify` that rows differ, or "
    "`penstock demo` saw an invariant broken or a table that differs from Postgres.",
    2: "Wrong usage: an unknown option, table or statement. Nothing was done.",
    3: "A definite error: it stays until somebody acts. Also `penstock verify` where a table could not be compared.",
    4: "Gave up on a transient error: try again later.",
    130: "Interrupted: `penstock demo` and `penstock sql` by Ctrl-C, any command by a second one.",
}


def page() -> str:
    text = inspect.getdoc(errors) or ""
    tree = inspect.cleandoc(text.split("::\n", 1)[1].split("\n\nErrors cross", 1)[0])
    classes = [getattr(errors, name) for name in errors.__all__]
    rows = [[code(c.__name__), str(c.exit_code), (inspect.getdoc(c) or "").partition("\n")[0]] for c in classes]
    return "\n\n".join(
        [
            "# Errors and exit codes",
            "Every error that Penstock raises on purpose has a `message` (what happened and where) and a `remedy` "
            "(what to do). Neither holds row values or secrets.",
            f"```text\n{tree}\n```",
            table(["error", "exit code", "meaning"], rows),
            "`penstock.PenstockError`, `UsageError`, `DefiniteError`, `TableError` and `TransientError` can be "
            "imported from `penstock`, all of them from `penstock.errors`. A `TableError` also has `table` and `lsn`.",
            '`format("penstock")` runs inside Spark, which wraps errors: there you see a PySpark exception whose text '
            "ends in message and remedy.",
            "## Exit codes",
            table(["code", "meaning"], [[str(number), meaning] for number, meaning in EXIT_CODES.items()]),
            "`--debug` shows the traceback of an error.",
        ]
    )

"""errors.md, from `errors.py` and `error_policy.py`, and the meaning of exit codes below."""

from __future__ import annotations

import inspect

from docs.generate.markdown import code, table

from penstock import errors
from penstock.engine import error_policy

__all__ = ["EXIT_CODES", "page"]

EXIT_CODES = {
    0: "Success. Also when `penstock run` or `penstock tail` is stopped by Ctrl-C.",
    1: "A check or verification failed: `penstock check` found that capture cannot start, `penstock verify` found rows "
    "that differ, or `penstock demo` found a violated invariant or a table that differs from Postgres.",
    2: "Invalid usage: an invalid option, argument or statement. Nothing was changed.",
    3: "A permanent error: it stays until an operator acts. Also when `penstock verify` could not compare a table.",
    4: "A transient error persisted: try again later.",
    130: "Interrupted: `penstock demo` and `penstock sql` by Ctrl-C, any command by a second Ctrl-C.",
}


_POLICY = (
    "An error of one table never stops another table. An exception that is none of the above is a defect in Penstock "
    "or an error in Spark. Only its type and the place where it was raised are shown, because its text may contain row "
    "values."
)


def _policy() -> str:
    text = inspect.getdoc(error_policy) or ""
    return inspect.cleandoc(text.split("::\n", 1)[1].split("\n\nOnly a few places", 1)[0])


def page() -> str:
    text = inspect.getdoc(errors) or ""
    tree = inspect.cleandoc(text.split("::\n", 1)[1].split("\n\nErrors cross", 1)[0])
    classes: list[type[errors.PenstockError]] = [
        getattr(errors, name) for name in errors.__all__ if name.endswith("Error")
    ]
    rows = [[code(c.__name__), str(c.exit_code), (inspect.getdoc(c) or "").partition("\n")[0]] for c in classes]
    return "\n\n".join(
        [
            "# Errors and exit codes",
            "Every error that Penstock raises on purpose has a `message` (what happened and where) and a `hint` "
            "(what to do). Neither contains row values or secrets.",
            f"```text\n{tree}\n```",
            table(["error", "exit code", "meaning"], rows),
            "Import `PenstockError`, `UsageError`, `DefiniteError`, `TableError` and `TransientError` from `penstock`, "
            "the others from `penstock.errors`. A `TableError` also has `table` and `lsn`.",
            '`format("penstock")` runs inside Spark, which wraps errors: it raises a PySpark exception whose text ends '
            "with the message and the hint.",
            "## Error handling while a home runs",
            _POLICY,
            f"```text\n{_policy()}\n```",
            "An error of a table that is `pending` or `live` is retried, and a live table stays readable. `penstock "
            "status` and `SHOW ERRORS` show the error until a retry succeeds. If capture of a source fails or dies "
            "repeatedly without making progress, the source is `failed`, with the last error; capture is still retried "
            "once a minute. The places where exceptions were raised are also logged in the folder `run` of the home, "
            "in `defects-SOURCE.log` and `capture-SOURCE.log`.",
            "## Exit codes",
            table(["code", "meaning"], [[str(number), meaning] for number, meaning in EXIT_CODES.items()]),
            "`--debug` shows the traceback of an error.",
        ]
    )

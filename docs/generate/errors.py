"""errors.md, from `errors.py`; what exit codes mean, stands here."""

from __future__ import annotations

import inspect

from docs.generate.markdown import code, table

from penstock import errors
from penstock.engine import error_policy

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


_POLICY = (
    "Errors of one table never stop another. An exception that is not one of the above is a defect in Penstock, or an "
    "error of Spark; of these, type and place are shown, and nothing of what they say, which may hold row values."
)


def _policy() -> str:
    text = inspect.getdoc(error_policy) or ""
    return inspect.cleandoc(text.split("::\n", 1)[1].split("\n\nNothing else", 1)[0])


def page() -> str:
    text = inspect.getdoc(errors) or ""
    tree = inspect.cleandoc(text.split("::\n", 1)[1].split("\n\nErrors cross", 1)[0])
    classes = [found for name in errors.__all__ if inspect.isclass(found := getattr(errors, name))]
    rows = [[code(c.__name__), str(c.exit_code), (inspect.getdoc(c) or "").partition("\n")[0]] for c in classes]
    return "\n\n".join(
        [
            "# Errors and exit codes",
            "Every error that Penstock raises on purpose has a `message` (what happened and where) and a `hint` "
            "(what to do). Neither holds row values or secrets.",
            f"```text\n{tree}\n```",
            table(["error", "exit code", "meaning"], rows),
            "`penstock.PenstockError`, `UsageError`, `DefiniteError`, `TableError` and `TransientError` can be "
            "imported from `penstock`, all of them from `penstock.errors`. A `TableError` also has `table` and `lsn`.",
            '`format("penstock")` runs inside Spark, which wraps errors: there you see a PySpark exception whose text '
            "ends in message and hint.",
            "## What becomes of an error while a home runs",
            _POLICY,
            f"```text\n{_policy()}\n```",
            "An error beside a table that is `pending` or `live` is one of those that are tried again: what is there "
            "of the table stays readable. `penstock status` and `SHOW ERRORS` have it until it works. A source whose "
            "capture dies, or breaks off, again and again without getting on is `failed`, with how it ended; it is "
            "tried once a minute all the same. Where exceptions came from is also in the folder `run` of the home, in "
            "`defects-SOURCE.log` and `capture-SOURCE.log`.",
            "## Exit codes",
            table(["code", "meaning"], [[str(number), meaning] for number, meaning in EXIT_CODES.items()]),
            "`--debug` shows the traceback of an error.",
        ]
    )

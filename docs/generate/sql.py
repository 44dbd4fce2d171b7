"""sql.md, from `statements.py` and the options of a Postgres source."""

from __future__ import annotations

import inspect

from docs.generate.markdown import code, table

from penstock.sources.option_reading import Option
from penstock.sources.option_syntax import options_of
from penstock.sources.postgres.spec import PostgresSource
from penstock.sources.syntax import Flag
from penstock.sql import statements
from penstock.sql.errors import SqlError
from penstock.sql.grammar import parse

__all__ = ["page"]

_CREATE_EXAMPLE = """CREATE SOURCES shop FROM POSTGRES
  CONNECTION 'postgresql://penstock@db:5432/shop'
  PASSWORD 'env:SHOP_PASSWORD'
  FOR TABLES (public.orders AS orders, public.users)
  WITH (
    exclude columns = (public.users.password_hash),
    snapshot = 'chunked',
    retain history = '2 days'
  );"""

_VALUES = {
    "text": ("`'it''s'`", "In single quotes; a quote in it is doubled. A backslash is a character like any other."),
    "number": ("`20000`, `0.5`", ""),
    "true or false": ("`true`, `false`, `on`, `off`", "The name of the option alone means true."),
    "one of some": ("`'chunked'`, `chunked`", "In quotes or not, in any case."),
    "span of time": ("`'1 day'`, `'1 hour 30 minutes'`", "Units are ms, s, min, h, d and w, and their names."),
    "amount of bytes": ("`'16 MB'`", "Units are B, kB, MB, GB and TB; as in Postgres, a kB is 1024 bytes."),
    "name": ('`orders`, `"my orders"`', "Bare, in double quotes or in backticks. Its case is kept."),
    "list": ("`(a, b)`, `('x', 'y')`", "In parentheses."),
    "mapping": ("`('a' = 'b')`", "Pairs in parentheses."),
}


def page() -> str:
    clauses = [[code(option.form), _meaning(option)] for option in options_of(PostgresSource.SqlOptions)]
    settings = [_setting(option) for option in options_of(PostgresSource.WithOptions)]
    query = (
        "SELECT o.status, count(*)\nFROM shop.orders AS OF LSN '16/B374D848' o JOIN shop.users USING (user_id)\n"
        "GROUP BY o.status;"
    )
    return "\n\n".join(
        [
            "# SQL",
            "These statements are Penstock's own. Everything else is a query: Spark SQL over live tables, which are "
            "named `source.table`. `SOURCE` and `SOURCES` are the same word, and so are words in small and in capital "
            "letters. Comments are `-- …` and `/* … */`.",
            "## Statements",
            table(["statement", "meaning"], _statements()),
            "The condition behind `REPAIR … WHERE` is for Postgres to read. Keys are values, or lists of values in "
            "parentheses.",
            "## CREATE SOURCES",
            f"```sql\n{_CREATE_EXAMPLE}\n```",
            "Clauses come before `WITH`, in any order:",
            table(["clause", "meaning"], [*clauses, ["`FOR ALL TABLES`", "Also where none of the `FOR` is given."]]),
            "Options stand in `WITH`, in any order, with spaces or underscores in their names:",
            table(["option", "value", "default", "meaning"], settings),
            "What the choices mean is said at the [options of a source](source-options.md). `SHOW CREATE SOURCES` "
            "gives back a statement that makes the same source, with what differs from the defaults.",
            "## Values",
            table(["value", "like", "rules"], [[name, *words] for name, words in _VALUES.items()]),
            "## Secrets",
            "A password is named, not given: `'env:NAME'` is an environment variable, `'file:PATH'` the first line of "
            "a file. A password in clear is refused, unless the statement says `WITH (allow literal secrets = true)`. "
            "No error, statement or log shows it.",
            "## Queries",
            "All live tables of a query are at one moment. Names are found where tables stand, also in subqueries, "
            "`MERGE … USING`, `EXPLAIN`, `DESCRIBE` and `SHOW COLUMNS`; nothing else of the text is changed. "
            "`AS OF TIMESTAMP '…'` or `AS OF LSN '…'` behind a name asks for that table "
            "[as it was](../how-to/read-the-past.md).",
            f"```sql\n{query}\n```",
            "## Errors",
            "An error tells line and column, shows the line with a caret under the place, and says what to do:",
            f"```text\n{_error_example()}\n```",
        ]
    )


def _statements() -> list[list[str]]:
    """Take form and meaning from the first line of each statement's docstring."""
    rows = []
    for name in statements.__all__:
        if inspect.isclass(getattr(statements, name)):
            form, _, meaning = (inspect.getdoc(getattr(statements, name)) or "").partition("\n")[0].partition("``: ")
            rows.append([code(form.strip("`")), f"{meaning[0].upper()}{meaning[1:]}"])
    return sorted(rows)


def _meaning(option: Option) -> str:
    text = str(option.info.description)
    return f"{text[0].upper()}{text[1:]}."


def _setting(option: Option) -> list[str]:
    default = option.info.default
    shown = "" if default in (None, ()) else option.syntax.write(default)
    form = "`true`, `false`" if isinstance(option.syntax, Flag) else code(option.syntax.form)
    return [code(option.setting), form, code(shown) if shown else "", _meaning(option)]


def _error_example() -> str:
    try:
        parse(_CREATE_EXAMPLE.replace("retain history", "retain histroy"), {PostgresSource.NAME: PostgresSource})
    except SqlError as error:
        return str(error)
    raise KeyError(_CREATE_EXAMPLE)

"""sql.md, from `statements.py` and the options of a Postgres source."""

from __future__ import annotations

import inspect

from docs.generate.markdown import code, table
from docs.generate.option_tables import clause_rows, setting_rows

from penstock.sources.interface import STATUS_SOURCE
from penstock.sources.postgres.spec import PostgresSource
from penstock.sql import statements
from penstock.sql.errors import SqlError
from penstock.sql.grammar import parse
from penstock.sql.show_statements import STATUS_TABLES
from penstock.sql.syntax.options import options_of

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

_SINK_EXAMPLE = """CREATE SINK orders_out FROM shop.orders INTO KAFKA
  BROKER 'k1:9092'
  TOPIC 'orders'
  FORMAT JSON
  ENVELOPE UPSERT;"""

_VALUES = {
    "string": ("`'it''s'`", "In single quotes. Double a quote within the text. A backslash has no special meaning."),
    "number": ("`20000`, `0.5`", ""),
    "boolean": ("`true`, `false`, `on`, `off`", "An option name without a value means true."),
    "keyword": ("`'chunked'`, `chunked`", "With or without quotes; case-insensitive."),
    "duration": ("`'1 day'`, `'1 hour 30 minutes'`", "The units are ms, s, min, h, d and w, and their full names."),
    "size": ("`'16 MB'`", "The units are B, kB, MB, GB and TB. As in Postgres, 1 kB is 1024 bytes."),
    "name": ('`orders`, `"my orders"`', "Without quotes, in double quotes or in backticks. Its case is preserved."),
    "list": ("`(a, b)`, `('x', 'y')`", "In parentheses."),
    "mapping": ("`('a' = 'b')`, `(card = 'hash')`", "Pairs in parentheses."),
}


def page() -> str:
    clauses = clause_rows(options_of(PostgresSource.SqlOptions))
    settings = setting_rows(options_of(PostgresSource.WithOptions))
    query = (
        "SELECT o.status, count(*)\nFROM shop.orders AS OF LSN '16/B374D848' o JOIN shop.users USING (user_id)\n"
        "GROUP BY o.status;"
    )
    return "\n\n".join(
        [
            "# SQL",
            "Penstock executes the statements on this page. Any other statement is a query, which Spark SQL executes "
            "over live tables, named `source.table`. Keywords are case-insensitive; `SOURCE` and `SOURCES` are "
            "synonyms, and so are `SINK` and `SINKS`. Comments are `-- …` and `/* … */`.",
            "## Statements",
            table(["statement", "meaning"], _statements()),
            "Postgres and Spark both evaluate the condition of `REPAIR … WHERE`, so it must be valid SQL in both. A "
            "key is a value or, if the key has several columns, a list of values in parentheses.",
            "## CREATE SOURCES",
            f"```sql\n{_CREATE_EXAMPLE}\n```",
            "These clauses precede `WITH`, in any order:",
            table(["clause", "meaning"], [*clauses, ["`FOR ALL TABLES`", "All tables; the default without `FOR`."]]),
            "`WITH` lists options in any order, with spaces or underscores in their names. In the column *value*, "
            "`'1 day'` stands for any [duration](#values):",
            table(["option", "value", "default", "meaning"], settings),
            "The [options of a Postgres source](source-options.md) describe the values of these options. `SHOW CREATE "
            "SOURCES` returns a statement that creates the same source, with the options that differ from their "
            "defaults. Other kinds have other clauses and options: see [Kafka](kafka-options.md) and [other "
            "sources](other-sources.md).",
            "## CREATE SINK",
            f"```sql\n{_SINK_EXAMPLE}\n```",
            "Writes the changes of a table, or of all tables of a source, to Kafka: see [sinks](sinks.md).",
            "## Values",
            table(["value", "example", "syntax"], [[name, *words] for name, words in _VALUES.items()]),
            "## Secrets",
            "A password is given as a reference: `'env:NAME'` is an environment variable, `'file:PATH'` the first line "
            "of a file. A literal password is rejected unless the statement has `WITH (allow literal secrets = true)`. "
            "It never appears in an error, in `SHOW CREATE SOURCES` or in a log.",
            "## Queries",
            "A query reads all live tables at one position of each source. Their names are resolved wherever SQL "
            "expects a table, also in subqueries, `MERGE … USING`, `EXPLAIN`, `DESCRIBE` and `SHOW COLUMNS`; the rest "
            "of the query is passed to Spark unchanged. `AS OF TIMESTAMP '…'` or `AS OF LSN '…'` after a table name "
            "reads [an earlier state](../how-to/read-the-past.md) of that table.",
            f"```sql\n{query}\n```",
            "The status of the home is available as tables, too, as of now: "
            + ", ".join(code(f"{STATUS_SOURCE}.{name}") for name in STATUS_TABLES)
            + ", with the columns of the corresponding `SHOW` statements. No source can be named "
            + f"{code(STATUS_SOURCE)}.",
            "## Errors",
            "A syntax error reports line and column, shows the line with a caret at the position, and gives a hint:",
            f"```text\n{_error_example()}\n```",
        ]
    )


def _statements() -> list[list[str]]:
    """Return syntax and meaning of each statement, from the first line of its docstring."""
    rows = []
    for name in statements.__all__:
        if inspect.isclass(getattr(statements, name)):
            form, _, meaning = (inspect.getdoc(getattr(statements, name)) or "").partition("\n")[0].partition("``: ")
            rows.append([code(form.strip("`")), f"{meaning[0].upper()}{meaning[1:]}"])
    return sorted(rows)


def _error_example() -> str:
    try:
        parse(_CREATE_EXAMPLE.replace("retain history", "retain histroy"), {PostgresSource.NAME: PostgresSource})
    except SqlError as error:
        return str(error)
    raise KeyError(_CREATE_EXAMPLE)

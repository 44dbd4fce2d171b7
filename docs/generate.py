"""The reference pages, made from the code: ``python docs/generate.py`` writes them, ``--check`` only compares.

::

    typer app ─▶ cli.md              PenstockOptions ─▶ spark-source.md     errors.py ─▶ errors.md
    codecs ─▶ types.md               states.py ─▶ states.md                 HomeStatus ─▶ status.md
    CheckReport ─▶ check.md          PostgresOptions ─▶ source-options.md   transaction_json ─▶ tail.md
    VerifyReport ─▶ verify.md        options of other kinds ─▶ other-sources.md
    statements.py, options ─▶ sql.md KafkaWithOptions ─▶ kafka-options.md

What the code does not say, a word on each field of the status and on each type, stands here; a field or a type without
one is a `KeyError`, so a page cannot lag behind.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import psycopg
import pyarrow as pa
import typer
from pydantic import BaseModel
from typer.core import TyperArgument, TyperOption

from penstock import errors
from penstock.catalog.states import SourceState, TableState
from penstock.changelog.shapes import changes_schema
from penstock.changelog.transactions import Transaction
from penstock.changelog.updates import updates_schema
from penstock.cli.main import app
from penstock.control.check import CheckFinding, CheckReport, CheckTable
from penstock.control.status import DebtStatus, HomeStatus, ReaderStatus, SourceStatus, TableStatus
from penstock.control.transaction_json import VERSION, transaction_json
from penstock.control.verify_report import VerifyKey, VerifyRepair, VerifyReport, VerifyTable
from penstock.positions import Lsn
from penstock.sources.files.options import FileFormat, FileSqlOptions, FileWithOptions, UnknownFields
from penstock.sources.findings import Level
from penstock.sources.kafka.security import KerberosOptions, Mechanism, SaslOptions, SecurityProtocol, SslOptions
from penstock.sources.kafka.sense import REFUSED
from penstock.sources.kafka.sql_options import EnvelopeKind, KafkaSqlOptions, MessageFormat, Metadata
from penstock.sources.kafka.translation import TRANSLATIONS
from penstock.sources.kafka.with_options import (
    Beginning,
    IsolationLevel,
    KafkaWithOptions,
    OnError,
    RegistryOptions,
    TimestampType,
)
from penstock.sources.load.options import LoadSqlOptions, LoadWithOptions
from penstock.sources.option_reading import Option
from penstock.sources.option_syntax import options_of
from penstock.sources.postgres import types
from penstock.sources.postgres.options import (
    Heartbeat,
    Ownership,
    Partitions,
    PostgresOptions,
    Rules,
    Snapshot,
    Watermarks,
)
from penstock.sources.postgres.spec import PostgresSource
from penstock.sources.postgres.types.known import BY_OID
from penstock.sources.syntax import Flag
from penstock.spark.ranges import spark_schema
from penstock.spark.source_options import PenstockOptions
from penstock.sql import statements
from penstock.sql.grammar import parse
from penstock.sql.sql_error import SqlError

__all__ = ["EXIT_CODES", "FOLDER", "main", "pages"]

FOLDER = Path(__file__).parent / "reference"
_MADE = "<!-- Made by docs/generate.py from the code. Change it there. -->"

EXIT_CODES = {
    0: "Done. Also `penstock run` and `penstock tail` stopped by Ctrl-C.",
    1: "The answer is no: `penstock check` found that capture could not start, `penstock verify` that rows differ, or "
    "`penstock demo` saw an invariant broken or a table that differs from Postgres.",
    2: "Wrong usage: an unknown option, table or statement. Nothing was done.",
    3: "A definite error: it stays until somebody acts. Also `penstock verify` where a table could not be compared.",
    4: "Gave up on a transient error: try again later.",
    130: "Interrupted: `penstock demo` and `penstock sql` by Ctrl-C, any command by a second one.",
}


def pages() -> dict[str, str]:
    """Return all pages: file name → text."""
    makers: dict[str, Callable[[], str]] = {
        "cli.md": _cli,
        "spark-source.md": _spark_source,
        "errors.md": _errors,
        "types.md": _types,
        "states.md": _states,
        "status.md": _status,
        "check.md": _check,
        "tail.md": _tail,
        "verify.md": _verify,
        "source-options.md": _source_options,
        "other-sources.md": _other_sources,
        "kafka-options.md": _kafka_options,
        "sql.md": _sql,
    }
    return {name: f"{_MADE}\n\n{make().strip()}\n" for name, make in makers.items()}


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or say which are not current."""
    stale = [name for name, text in pages().items() if _stored(name) != text]
    if "--check" in arguments:
        print("\n".join(f"not current: docs/reference/{name}" for name in stale) or "all current")
        return 1 if stale else 0
    FOLDER.mkdir(exist_ok=True)
    for name in stale:
        (FOLDER / name).write_text(pages()[name], encoding="utf-8")
        print(f"wrote docs/reference/{name}")
    return 0


def _stored(name: str) -> str | None:
    path = FOLDER / name
    return path.read_text(encoding="utf-8") if path.exists() else None


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _code(text: str) -> str:
    return f"`{text}`"


# -- the command line --------------------------------------------------------------------------------------------------


def _cli() -> str:
    group: Any = typer.main.get_command(app)
    parts = [
        "# Command line",
        group.help,
        "```sh\n" + "\n".join(["penstock --help", "penstock --version"]) + "\n```",
        _options(group),
        "Errors go to stderr: what happened, where, and what to do. "
        "[Exit codes](errors.md#exit-codes) say how a command ended.",
    ]
    parts += [_command(name, command) for name, command in group.commands.items()]
    return "\n\n".join(part for part in parts if part)


def _command(name: str, command: Any) -> str:
    text = inspect.cleandoc(command.help or "")
    prose, _, example = text.partition("Example:")
    arguments = [p for p in command.params if isinstance(p, TyperArgument)]
    usage = " ".join(["penstock", name, "[OPTIONS]", *(_argument_usage(p) for p in arguments)])
    parts = [f"## penstock {name}", prose.strip(), f"```text\n{usage}\n```"]
    if example:
        parts.append(f"```sh\n{' '.join(example.split())}\n```")
    if arguments:
        rows = [[_code(p.name.upper()), p.help or ""] for p in arguments]
        parts.append(_table(["argument", "meaning"], rows))
    return "\n\n".join([*parts, _options(command)])


def _argument_usage(parameter: Any) -> str:
    name = str(parameter.name).upper()
    return name if parameter.required else f"[{name}]{'…' if parameter.nargs == -1 else ''}"


def _options(command: Any) -> str:
    shown = [p for p in command.params if isinstance(p, TyperOption) and p.name not in _COMPLETION]
    rows = []
    for parameter in shown:
        names = ", ".join(_code(o) for o in sorted(parameter.opts, key=lambda o: (o.startswith("--"), o)))
        value = "" if parameter.is_flag else _value(parameter)
        rows.append([names, value, _default(parameter), _help(parameter)])
    return _table(["option", "value", "default", "meaning"], rows) if rows else ""


_COMPLETION = {"install_completion", "show_completion"}


def _value(parameter: Any) -> str:
    kind = parameter.type_descriptor.annotation
    if kind == list[str]:
        return "text, several times"
    if issubclass(kind, enum.Enum):
        return ", ".join(_code(str(choice.value)) for choice in kind)
    return {int: "number", str: "text", Path: "path"}[kind]


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.is_flag or value is None:
        return ""
    return _code(str(value.value if isinstance(value, enum.Enum) else value))


def _help(parameter: Any) -> str:
    variable = parameter.envvar
    text = parameter.help or ""
    if parameter.min is not None:
        text += f" At least {parameter.min}."
    return f"{text} Also from {_code(str(variable))}." if variable else text


# -- the Spark source --------------------------------------------------------------------------------------------------


def _spark_source() -> str:
    rows = []
    for name, field in PenstockOptions.model_fields.items():
        default = "required" if field.is_required() else "" if field.default is None else _code(str(field.default))
        rows.append([_code(field.alias or name), default, f"{field.description}."])
    columns = pa.schema([("id", pa.int64()), ("status", pa.string())])
    shape = [[_code(f.name), _spark_type(f.type), _CHANGE[f.name]] for f in changes_schema(columns)]
    added = [[_code(f.name), _spark_type(f.type), _CHANGE[f.name]] for f in list(updates_schema(columns))[2:]]
    example = """
changes = (
    spark.readStream.format("penstock")
    .option("home", ".penstock")
    .option("source", "shop")
    .option("table", "public.orders")
    .load()
)
"""
    return "\n\n".join(
        [
            '# Spark source: format("penstock")',
            "Captured tables and what happens to them, as a stream (`spark.readStream`) or as a batch (`spark.read`). "
            "Spark finds it by itself where the package `penstock` is installed.",
            f"```python{example}```",
            "## Options",
            "Names are read in any case. An unknown one is an error that suggests the nearest.",
            _table(["option", "default", "meaning"], rows),
            "A position is an LSN as Postgres prints it, like `16/B374D848`, or a time. Changes *after* the starting "
            "position are read. `home.frontiers(source).valid` in Python, or `valid` in `penstock status --json`, is "
            "the earliest one: from there on the log holds every change. A range that begins before it is an error.",
            "## Rows: changes",
            "One row per change. For a table with the columns `id` and `status`:",
            _table(["column", "Spark type", "meaning"], shape),
            "Of several tables, `before` and `after` are JSON, and the first column is `_table`, the upstream name.",
            "## Rows: updates",
            "The columns of the table, then these. An update is two rows, the old one (-1) and the new one (+1).",
            _table(["column", "Spark type", "meaning"], added),
            "## Rows: live",
            "The columns of the table, and nothing else: as they are now, or were `asOf`. Batch only.",
            "## Offsets and progress",
            "An offset is the commit end LSN of a transaction. A micro-batch ends between two transactions, never "
            "inside one, and a batch that Spark runs again has the same rows. `latestOffset` in the query's progress "
            "is how far the log goes.",
        ]
    )


_CHANGE = {
    "_op": "`insert`, `update`, `delete` or `truncate`; `snapshot` for a row of the table as it is at `_lsn`.",
    "_diff": "+1 for a row that came, -1 for one that went.",
    "_lsn": "Commit end LSN of the transaction.",
    "_ordinal": "Place of the change in its transaction, over all its tables, from 0.",
    "_xid": "Transaction id.",
    "_committed_at": "Commit time at the source.",
    "_unchanged": "Columns of `after` that Postgres did not send because they did not change (TOAST); null there.",
    "before": "The old row, as far as the replica identity gives it: all of it (FULL), the key of a deleted row or of "
    "one whose key changed (DEFAULT), else null.",
    "after": "The new row; null for a delete and a truncate.",
}


def _spark_type(kind: pa.DataType) -> str:
    return _code(spark_schema(pa.schema([("c", kind)])).fields[0].dataType.simpleString())


# -- errors ------------------------------------------------------------------------------------------------------------


def _errors() -> str:
    text = inspect.getdoc(errors) or ""
    tree = inspect.cleandoc(text.split("::\n", 1)[1].split("\n\nErrors cross", 1)[0])
    classes = [getattr(errors, name) for name in errors.__all__]
    rows = [[_code(c.__name__), str(c.exit_code), (inspect.getdoc(c) or "").partition("\n")[0]] for c in classes]
    return "\n\n".join(
        [
            "# Errors and exit codes",
            "Every error that Penstock raises on purpose has a `message` (what happened and where) and a `remedy` "
            "(what to do). Neither holds row values or secrets.",
            f"```text\n{tree}\n```",
            _table(["error", "exit code", "meaning"], rows),
            "`penstock.PenstockError`, `UsageError`, `DefiniteError`, `TableError` and `TransientError` can be "
            "imported from `penstock`, all of them from `penstock.errors`. A `TableError` also has `table` and `lsn`.",
            '`format("penstock")` runs inside Spark, which wraps errors: there you see a PySpark exception whose text '
            "ends in message and remedy.",
            "## Exit codes",
            _table(["code", "meaning"], [[str(code), meaning] for code, meaning in EXIT_CODES.items()]),
            "`--debug` shows the traceback of an error.",
        ]
    )


# -- types -------------------------------------------------------------------------------------------------------------

_DATES = "Years outside 0001 to 9999, BC, infinities."
_AS_PRINTED = "Exactly the text that Postgres prints."
_SERVER_PRINTS = "Exactly the text that Postgres prints; sent as text."

_NOTES: dict[str, tuple[str, str]] = {
    "bool": ("", ""),
    "bytea": ("", ""),
    "char": ("Bytes from 0x80 on as a backslash and three octal digits.", ""),
    "name": ("", ""),
    "int8": ("", ""),
    "int2": ("", ""),
    "int2vector": ("", ""),
    "int4": ("", ""),
    "text": ("", ""),
    "oid": ("Unsigned upstream.", ""),
    "xid": ("Unsigned upstream.", ""),
    "cid": ("Unsigned upstream.", ""),
    "xid8": ("Unsigned upstream.", ""),
    "oidvector": ("", ""),
    "json": ("The text as Postgres keeps it.", ""),
    "jsonb": (_AS_PRINTED, ""),
    "jsonpath": (_AS_PRINTED, ""),
    "xml": ("The text as Postgres keeps it.", ""),
    "float4": ("Bit by bit, NaN and infinities too.", ""),
    "float8": ("Bit by bit, NaN and infinities too.", ""),
    "bpchar": ("With its padding.", ""),
    "varchar": ("", ""),
    "date": ("", _DATES),
    "timestamp": ("", _DATES),
    "timestamptz": ("", _DATES),
    "time": ("`HH:MM:SS[.ffffff]`, also `24:00:00`.", ""),
    "timetz": ("`HH:MM:SS[.ffffff]` and the offset.", ""),
    "interval": ("The three counts that Postgres keeps.", "Infinities (Postgres 17)."),
    "uuid": ("36 characters, lower case.", ""),
    "bit": ("Zeros and ones.", ""),
    "varbit": ("Zeros and ones.", ""),
    "inet": (_AS_PRINTED, ""),
    "cidr": (_AS_PRINTED, ""),
    "macaddr": (_AS_PRINTED, ""),
    "macaddr8": (_AS_PRINTED, ""),
    **dict.fromkeys(("point", "line", "lseg", "box", "path", "polygon", "circle"), (_AS_PRINTED, "")),
    "tid": (_AS_PRINTED, ""),
    "pg_lsn": (_AS_PRINTED, ""),
    "pg_snapshot": (_AS_PRINTED, ""),
    "txid_snapshot": (_AS_PRINTED, ""),
    "refcursor": ("", ""),
    "pg_node_tree": (_AS_PRINTED, ""),
}

_MADE_OF_OTHERS = (
    ("`numeric(p,s)`, 0 ≤ s ≤ p ≤ 38", "`decimal(p,s)`", "", "`NaN`."),
    ("any other `numeric`", "`string`", "Exactly the text that Postgres prints, `NaN` and infinities too.", ""),
    ("an enum", "`string`", "", ""),
    ("a domain", "as the type that it is of", "", "As that type."),
    (
        "an array of T",
        "`array<T>`",
        "Null elements are kept; an empty array is not null.",
        "Several dimensions; a lower bound other than 1.",
    ),
    (
        "a range of T",
        "`struct<lower:T, upper:T, lower_inclusive:boolean, upper_inclusive:boolean, empty:boolean>`",
        "A bound that is null has no end.",
        "Bounds that T cannot hold.",
    ),
    ("a multirange of T", "`array` of such structs", "", "As the range."),
    ("a composite type", "`struct` of its fields", "", "What its fields cannot hold."),
    ("`hstore`", "`map<string,string>`", "", ""),
    ("`citext`", "`string`", "", ""),
)


def _types() -> str:
    rows = []
    for oid, codec in BY_OID.items():
        known = types.builtin(oid)
        name = known.name if known else ""
        notes = (_SERVER_PRINTS, "") if codec.wants_text and name not in _NOTES else _NOTES[name]
        rows.append([_type_name(oid, name), _spark_type(codec.arrow), *notes])
    rows.sort(key=lambda row: row[0].strip('`"'))
    return "\n\n".join(
        [
            "# Types",
            "A column has one Spark type, the same from the first copy and from the stream. A value is kept exactly or "
            "not at all.",
            "## Built-in types",
            _table(["Postgres", "Spark", "what it holds", "what it cannot hold"], rows),
            "## Numerics, types of extensions, and types made of others",
            _table(
                ["Postgres", "Spark", "what it holds", "what it cannot hold"], [list(row) for row in _MADE_OF_OTHERS]
            ),
            "They nest: an array of a composite type with a range in it is an array of structs with a struct in it.",
            "*Sent as text*: only the server can print such a value. One such column, also inside of another type, "
            "makes the stream of its source use the text form for all columns, which takes longer to decode.",
            "## What a type cannot hold",
            "A value that its Spark type cannot hold ends its table with a definite error at that transaction; the "
            "other tables go on. The way out is the option `text columns`: a column listed there is a `string` with "
            "exactly the text that Postgres prints, whatever its type. See "
            "[recover a failed table](../how-to/recover-a-failed-table.md).",
            "If a composite type is altered upstream, values no longer look as they did when capture began. That, too, "
            "is a definite error of the table; `ALTER SOURCES … RETRY TABLE` copies it anew.",
            "## Types that are not here",
            "A table with a column of any other type (those of other extensions) is left out of the capture: it is "
            "`failed`, with the column in the message, and the other tables are captured. So is one with a composite "
            "type whose fields differ by case alone, as Spark does not tell them apart. `text columns` helps here too.",
            "Generated columns are not published by Postgres and are not captured; their table is.",
            "The option [`text_columns`](source-options.md) keeps a column as the text that Postgres prints, "
            "`exclude_columns` leaves it out.",
        ]
    )


def _type_name(oid: int, name: str) -> str:
    known = psycopg.postgres.types.get(oid)
    return _code(known.regtype if known else name)


# -- states and status -------------------------------------------------------------------------------------------------


def _states() -> str:
    parts = [
        "# States",
        "States are durable: they are in the catalog of the home, and a restart finds them. The words are the same in"
        " `penstock status`, in `SHOW SOURCES` and `SHOW TABLES`, on the status page and in the metrics"
        " (`penstock_source_state`, and the label `state` of `penstock_table_behind`).",
    ]
    for title, states in (("Sources", SourceState), ("Tables", TableState)):
        docs = _attribute_docs(states)
        rows = [[_code(state.value), docs[state.name]] for state in states]
        drawing = inspect.cleandoc(states.__doc__ or "").partition("::\n\n")[2]
        parts += [f"## {title}", f"```text\n{textwrap.dedent(drawing).rstrip()}\n```"]
        parts += [_table(["state", "who sets it, and what it means"], rows)]
    return "\n\n".join(parts)


def _attribute_docs(kind: type) -> dict[str, str]:
    """Read the strings that stand below the attributes of a class."""
    tree = ast.parse(inspect.getsource(kind)).body[0]
    if not isinstance(tree, ast.ClassDef):
        raise TypeError(kind)
    docs = {}
    for before, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(before, ast.Assign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            name = ast.unparse(before.targets[0])
            docs[name] = " ".join(str(after.value.value).split())
    return docs


_FIELDS: dict[type, dict[str, str]] = {
    HomeStatus: {
        "version": "Version of this shape: 1. It changes when a field changes its meaning or goes.",
        "home": "The folder.",
        "running": "Pid of the process that runs the home, or null.",
        "sources": "One object per source.",
        "debts": "What sources dropped by force left upstream; tried again at each start, gone when done.",
    },
    DebtStatus: {
        "source": "The source that was dropped.",
        "at": "Host, port and database.",
        "since": "When it was dropped.",
        "statements": "What to run there by hand, if the server is not coming back to where we find it.",
        "error": "Why the last try failed; null before the first.",
    },
    SourceStatus: {
        "name": "The source's name.",
        "kind": "`POSTGRES`.",
        "at": "Host, port and database.",
        "state": "See [states](states.md).",
        "valid": "The position after which the log holds every change.",
        "durable": "Every transaction up to this position is in the log, on disk.",
        "committed_at": "Commit time of the last transaction in the log.",
        "latency_ms": "From the commit of that transaction to its being readable here, in milliseconds. Two clocks: "
        "that of Postgres and ours.",
        "lag_bytes": "Bytes of WAL that Postgres has flushed beyond `durable`; null where it could not be asked.",
        "error": "What happened, if something did. With the state `ready` it is transient and is being retried.",
        "remedy": "What to do about it.",
        "log": "Where the change log is; null where it is a file in the home.",
        "tables": "One object per table, the ones that are not captured included.",
        "readers": "Who still needs history, and from where on.",
        "part_of": "Of a [shard](../how-to/capture-shards.md), the name that you gave to all of them; else null.",
        "shard": "Of a shard, what its rows have in `penstock_shard`; else null.",
    },
    ReaderStatus: {
        "name": "`tables` for the base tables, `reader NAME` for a stream that is registered; others have leases.",
        "position": "History after this position is kept for it.",
        "expires": "When its lease ends, unless it is renewed; null for a registered reader, which stays.",
    },
    CheckReport: {
        "version": "Version of this shape: 1. It changes when a field changes its meaning or goes.",
        "at": "Host, port and database; of shards, those of all of them.",
        "source": "The source's name; null where a database was checked.",
        "ready": "Whether capture could start, or go on.",
        "tables": "The tables that were asked for.",
        "findings": "Everything that was found, what holds for the server first.",
    },
    CheckTable: {
        "name": "The name in Postgres, `schema.table`.",
        "capturable": "Whether it can be captured.",
    },
    CheckFinding: {
        "level": "`error`, `warning` or `info`.",
        "object": "What it is about: a setting, the role, the slot, a table; of several shards, with the shard first.",
        "why": "What was found, and what follows from it.",
        "remedy": "What to do about it; empty where nothing needs to be done.",
        "sql": "The statements of the remedy, where they can be run as they are.",
    },
    VerifyReport: {
        "version": "Version of this shape: 1. It changes when a field changes its meaning or goes.",
        "source": "The source's name.",
        "position": "The position at which all tables were compared; null where there was none, or one per shard.",
        "equal": "Whether every table was compared, and not one row differs.",
        "tables": "One object per table.",
        "repairs": "What `--repair` did; `tables` are then as they were compared again after it.",
        "before": "With `--repair`, the report of what was found at first, of this same shape; else null.",
    },
    VerifyTable: {
        "name": "The name in queries, `source.table`.",
        "upstream": "The name in Postgres, `schema.table`.",
        "result": "`equal`, `different` or `not compared`.",
        "rows": "How many rows it has in Postgres; null where it was not compared, as are the numbers below.",
        "differing": "At how many keys it differs; of a table without a key, in how many distinct rows.",
        "missing": "Of these, how many are in Postgres only.",
        "unexpected": "How many are here only.",
        "changed": "How many are on both sides, with other values.",
        "keys": "The first 20 of them; none for a table without a key.",
        "error": "Why it was not compared.",
        "remedy": "What to do about it.",
        "shard": "Of a source that is made of shards, the one of which this is; else null.",
        "position": "The position at which it was compared; null where a shard could not be reached.",
    },
    VerifyKey: {
        "key": "The key's columns and their values. Integers are numbers; decimals and floats are text, so that no "
        "digit is lost; all else is as in [tail](tail.md#values).",
        "how": "`missing`, `unexpected` or `changed`.",
    },
    VerifyRepair: {
        "name": "The name in queries, `source.table`.",
        "rows_changed": "How many rows were put right.",
        "low": "The position before which the rows were read.",
        "high": "The position from which on the table holds them.",
    },
    TableStatus: {
        "name": "The name in queries, `source.table`.",
        "upstream": "The name in Postgres, `schema.table`.",
        "state": "See [states](states.md).",
        "position": "The position of its base table; null before its first copy.",
        "behind": "Images in the log beyond the base table (an update with an old row has two). Live views have them.",
        "error": "What happened, if something did.",
        "remedy": "What to do about it.",
        "copied_rows": "Rows that its copy has taken so far; null when it is not being copied.",
        "copied_bytes": "The same in bytes, as Postgres sent them.",
        "estimated_rows": "About how many rows there are, by Postgres's estimate or what has come, if that is more.",
        "estimated_bytes": "About how many bytes, by the size of the table upstream or what has come.",
        "waiting": "What its copy waits for: the transaction that holds up a snapshot, with its pid and age.",
    },
}


def _status() -> str:
    parts = [
        "# penstock status --json",
        "One document. Positions are LSNs as text, times are ISO 8601 in UTC.",
        f"```json\n{json.dumps(_example().as_json(), indent=2)}\n```",
    ]
    kinds = (("The home", HomeStatus), ("A source", SourceStatus), ("A table", TableStatus))
    more = (("A reader", ReaderStatus), ("A debt", DebtStatus))
    return "\n\n".join([*parts, *(_shape(title, kind) for title, kind in (*kinds, *more))])


def _shape(title: str, kind: Any) -> str:
    """Describe one object of a JSON document, each field by a word of ours."""
    known = [field.name for field in dataclasses.fields(kind)]
    if known != list(_FIELDS[kind]):
        raise KeyError(kind, known)
    rows = [[_code(f.name), _json_type(str(f.type)), _FIELDS[kind][f.name]] for f in dataclasses.fields(kind)]
    return f"## {title}\n\n" + _table(["field", "type", "meaning"], rows)


def _json_type(annotation: str) -> str:
    names = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "None": "null"}
    names["VerifyReport"] = "object"
    if annotation == "list[str]":
        return "list of strings"
    if listed := re.fullmatch(r"list\[(\w+)\]", annotation):
        return f"list of {re.sub('Status$|^Check|^Verify', '', listed[1]).lower()}s"
    if annotation == "dict[str, Any]":
        return "object"
    return " or ".join(names[part] for part in annotation.split(" | "))


def _example() -> HomeStatus:
    tables = [
        TableStatus("shop.orders", "public.orders", TableState.LIVE.value, "0/28F14C0", 757, None, None),
        TableStatus(
            "shop.visits",
            "public.visits",
            TableState.FAILED.value,
            None,
            0,
            "it has no primary key",
            'Run: ALTER TABLE "public"."visits" ADD PRIMARY KEY (…);',
        ),
    ]
    source = SourceStatus(
        name="shop",
        kind="POSTGRES",
        at="db.example.com:5432/shop",
        state=SourceState.READY.value,
        valid="0/2771D28",
        durable="0/2A9D5B0",
        committed_at="2026-11-15T07:15:58.101+00:00",
        latency_ms=6.2,
        lag_bytes=0,
        error=None,
        remedy=None,
        log=None,
        tables=tables,
        readers=[ReaderStatus("tables", "0/28F14C0", None)],
    )
    return HomeStatus(1, ".penstock", 4711, [source])


# -- check and the options of a source ---------------------------------------------------------------------------------


def _check() -> str:
    example = CheckReport(
        1,
        "db.example.com:5432/shop",
        None,
        True,
        [CheckTable("public.orders", True), CheckTable("public.visits", False)],
        [
            CheckFinding(
                "error",
                "public.visits",
                "its replica identity is NOTHING: once it is published, UPDATE and DELETE on it fail",
                'Run: ALTER TABLE "public"."visits" REPLICA IDENTITY DEFAULT;',
                ['ALTER TABLE "public"."visits" REPLICA IDENTITY DEFAULT;'],
            )
        ],
    )
    return "\n\n".join(
        [
            "# penstock check --json",
            "One document. The command ends with exit code 1 when `ready` is false.",
            f"```json\n{json.dumps(example.as_json(), indent=2)}\n```",
            _shape("The report", CheckReport),
            _shape("A table", CheckTable),
            _shape("A finding", CheckFinding),
            "## Levels",
            _table(["level", "meaning"], [[_code(level), _attribute_docs(Level)[level.name]] for level in Level]),
            "What is looked at, and what mends it, is in [prepare Postgres](../how-to/prepare-postgres.md).",
        ]
    )


# -- verify ------------------------------------------------------------------------------------------------------------


def _verify() -> str:
    users = VerifyTable(
        *("shop.users", "public.users", "different", 5002, 1, 1, 0, 0),
        [VerifyKey({"id": 4711}, "missing")],
        *(None, None, None, "0/2A9D5B0"),
    )
    equal = ("shop.orders", "public.orders", "equal", 120391, 0, 0, 0, 0)
    orders = VerifyTable(*equal, [], None, None, None, "0/2A9D5B0")
    example = VerifyReport(1, "shop", "0/2A9D5B0", False, [orders, users])
    return "\n\n".join(
        [
            "# penstock verify --json",
            "One document. The command ends with exit code 1 when a table is `different`, and with 3 when none is but "
            "one was `not compared`. No values of rows are in it but those of keys.",
            f"```json\n{json.dumps(example.as_json(), indent=2)}\n```",
            _shape("The report", VerifyReport),
            _shape("A table", VerifyTable),
            _shape("A key", VerifyKey),
            _shape("A repair", VerifyRepair),
            "See [verify and repair](../how-to/verify-and-repair.md).",
        ]
    )


# -- tail --------------------------------------------------------------------------------------------------------------

_TAIL = {
    "version": ("integer", f"Version of this shape: {VERSION}. It changes when a field changes its meaning or goes."),
    "source": ("string", "The source's name."),
    "shard": ("string or null", "Of a source that is made of shards, the one in which it committed; else null."),
    "lsn": ("string", "The position: the end of the commit record, as Postgres prints it."),
    "xid": ("integer", "The transaction's id in Postgres."),
    "committed_at": ("string", "When it committed, by the clock of Postgres: ISO 8601, UTC, in microseconds."),
    "tables": ("object", "For each table that it changed, `schema.table`, the list of changes, in order."),
}
_TAIL_CHANGE = {
    "op": ("string", "`insert`, `update`, `delete` or `truncate`."),
    "ordinal": ("integer", "Its place among all changes of the transaction, over all tables of the source."),
    "unchanged": (
        "list of strings",
        "Columns of `after` that were not sent as they did not change (TOAST): null there.",
    ),
    "before": ("object or null", "What the replica identity gives: the old row, its key, or nothing."),
    "after": ("object or null", "The new row; null for `delete` and `truncate`."),
}


def _tail() -> str:
    columns = pa.schema([("id", pa.int64()), ("total", pa.decimal128(12, 2)), ("paid_at", pa.timestamp("us", "UTC"))])
    at = datetime(2026, 11, 15, 7, 15, 58, 101000, tzinfo=UTC)
    new = {"id": 4711, "total": Decimal("12.50"), "paid_at": at}
    shared = {"_lsn": "0/28F14C0", "_xid": 743, "_committed_at": at, "_unchanged": None}
    row = {"_op": "update", "_ordinal": 0, **shared, "before": {**new, "paid_at": None}, "after": new}
    table = pa.Table.from_pylist([row], changes_schema(columns))
    line = transaction_json("shop", Transaction(Lsn.parse("0/28F14C0"), 743, at, {"public.orders": table}))
    told = json.loads(line)
    change = told["tables"]["public.orders"][0]
    if [list(told), list(change)] != [list(_TAIL), list(_TAIL_CHANGE)]:
        raise KeyError(line)
    return "\n\n".join(
        [
            "# penstock tail --format json",
            "One line per transaction, in commit order; of several shards, in that of each.",
            f"```json\n{line}\n```",
            "## A transaction",
            _table(["field", "type", "meaning"], [[_code(name), *words] for name, words in _TAIL.items()]),
            "## A change",
            _table(["field", "type", "meaning"], [[_code(name), *words] for name, words in _TAIL_CHANGE.items()]),
            "## Values",
            "Nothing is rounded. Integers and decimals are numbers with all their digits: parse them as such (in "
            "Python with `json.loads(line, parse_float=decimal.Decimal)`). Floats that are no numbers are the texts "
            "`NaN`, `Infinity` and `-Infinity`. Timestamps are ISO 8601, with `Z` where they have a time zone; dates "
            "are `2026-01-01`; binary values are base64. Arrays are lists, composite values and ranges are objects.",
        ]
    )


def _option_table(model: type[BaseModel], names: Iterable[str] = ()) -> str:
    """Return the table of a model's options, or of those that are named."""
    rows = []
    for name in names or model.model_fields:
        field = model.model_fields[name]
        kind = field.annotation
        choices = next((c for c in (kind, *get_args(kind)) if isinstance(c, type) and issubclass(c, enum.Enum)), None)
        listed = ", ".join(_code(str(choice.value)) for choice in choices) if choices else ""
        value = _SHAPES.get(name) or listed or _OPTION_TYPES[str(kind).replace("<class '", "").replace("'>", "")]
        unsaid = field.is_required() or field.default in (None, ()) or name in _SHAPES
        default = "" if unsaid else _code(str(field.default).lower())
        rows.append([_code(name), value, default, f"{str(field.description)[0].upper()}{str(field.description)[1:]}."])
    return _table(["option", "value", "default", "meaning"], rows)


def _other_sources() -> str:
    parts = [
        "# Other sources",
        "Sources that are no database. What is written in keywords stands in the first table of each, what is written "
        "in `WITH (…)` in the second; an option `poll_interval` is written `poll interval`. [How to read "
        "files](../how-to/read-files.md) shows them at work, and [how to add a kind of source](../how-to/"
        "add-a-kind-of-source.md) tells how packages bring more.",
        "## FILE",
        "A folder of files, as one table that has the name of the source.",
        _option_table(FileSqlOptions),
        _option_table(FileWithOptions),
    ]
    for title, kinds in (("format", FileFormat), ("unknown fields", UnknownFields)):
        docs = _attribute_docs(kinds)
        parts.append(_table([title, "meaning"], [[_code(k.value), docs[k.name]] for k in kinds]))
    parts += [
        "Types of columns are `boolean`, `tinyint`, `smallint`, `int`, `bigint`, `float`, `double`, `decimal(p, s)`, "
        "`string`, `date` and `timestamp`. `poll interval` and `retain history` can be changed later.",
        "## LOAD GENERATOR",
        "Tables under a load that is drawn from a seed.",
        _option_table(LoadSqlOptions),
        _option_table(LoadWithOptions),
        "`rate` and `retain history` can be changed later.",
    ]
    return "\n\n".join(parts)


def _source_options() -> str:
    parts = [
        "# Options of a Postgres source",
        'In Python they are arguments of `home.create("postgresql://…", "shop", schemas=("sales",))`; the '
        "[command line](cli.md#penstock-run) has the common ones.",
        _option_table(PostgresOptions),
        "`publication` and `slot` name the two objects in Postgres, `penstock_` and the source's name by default. "
        'Names of tables and columns are taken as they are; a part with a dot or a space is quoted: `public."a.b"`.',
        "An unknown option, table or column is an error that suggests the nearest. `slot_temporary` is refused by "
        "preflight: a slot that ends with its session cannot be resumed.",
    ]
    for title, kinds in (
        ("Ownership", Ownership),
        ("Rules", Rules),
        ("Partitions", Partitions),
        ("Heartbeat", Heartbeat),
        ("Snapshot", Snapshot),
        ("Watermarks", Watermarks),
    ):
        docs = _attribute_docs(kinds)
        parts += [f"## {title}", _table(["value", "meaning"], [[_code(k.value), docs[k.name]] for k in kinds])]
    return "\n\n".join(parts)


_OPTION_TYPES = {
    "str": "text",
    "str | None": "text",
    "tuple[str, ...]": "list of text",
    "bool": "true, false",
    "float": "number",
    "int": "number",
    "int | None": "number",
    "penstock.sources.kafka.secrets.Secret | None": "reference",
    "typing.Optional[penstock.sources.kafka.secrets.Secret]": "reference",
}
_SHAPES = {
    "start_offset": "`earliest`, `latest`, or a list of numbers",
    "include": "list of [columns](#columns-of-include), optionally AS another name",
    "envelope": "an [envelope](#envelopes), optionally with the topic of transaction metadata",
}


# -- the options of a Kafka source -------------------------------------------------------------------------------------

_OF_CLIENTS = (
    "Penstock looks at topics with librdkafka, and Spark reads them with Kafka's Java client. This is what an "
    "option is called there; what begins with `kafka.` is a setting of the Java client."
)
_ON_SECRETS = (
    "A password is a reference: `env:NAME` is an environment variable, `file:PATH` the first line of a file. It is "
    "read when a client is made. In clear it is refused, unless `allow_literal_secrets` is set: then it is put into"
    " a file of mode 600, and the option becomes a reference to that. Neither errors nor `repr` show it.",
    "Spark prints the options of a reader, in the plan of a stream for one, and hides those whose name or value "
    "looks like a secret to it (`spark.redaction.regex`). A private key does not. So Spark is given none of it: "
    "passwords, the private key and certificates are in a file of mode 600, and the options point to it "
    "(`${file:PATH:NAME}`, by Kafka's `FileConfigProvider`, which may read this file alone). On a cluster, "
    "executors need it at the same path. A test plants passwords and looks for them in plans, the UI, the event "
    "log, the checkpoint and logs.",
)
_ON_KEYS = (
    "Certificates and keys are PEM files, for both clients. Brokers are always held to their names. The Java client"
    " wants the private key in PKCS#8; `openssl pkcs8 -topk8` makes one of an older kind. Java 17 cannot unlock a "
    "key that was locked in openssl's present way (PBES2), and says `PBES2 SecretKeyFactory not available`; Java 25"
    " can. Lock it with `openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES` there, or use a newer Java.",
    "`GSSAPI` needs a librdkafka that is built with libsasl2, which the wheel of `confluent-kafka` is not; an error"
    " says so. It has not been tried with a Kerberos server. `OAUTHBEARER` is refused.",
)


def _kafka_options() -> str:
    grouped = [*SslOptions.model_fields, *SaslOptions.model_fields, *RegistryOptions.model_fields]
    protocol = ["security_protocol", "allow_literal_secrets"]
    reading = [name for name in KafkaWithOptions.model_fields if name not in {*grouped, *protocol}]
    sections: list[tuple[str, Iterable[str]]] = [
        ("Security", protocol),
        ("TLS", SslOptions.model_fields),
        ("Login", [name for name in SaslOptions.model_fields if name not in KerberosOptions.model_fields]),
        ("Kerberos", KerberosOptions.model_fields),
        ("Reading", reading),
        ("Schema registry", RegistryOptions.model_fields),
    ]
    parts = [
        "# Options of a Kafka source",
        "These are the options, how they are checked, and what they mean to Kafka's clients. A source that reads them "
        "cannot be created yet. In SQL a name is written with spaces: `ssl ca location`.",
        "## Before WITH",
        _option_table(KafkaSqlOptions),
    ]
    for title, names in sections:
        parts += [f"## {title}", _option_table(KafkaWithOptions, names)]
    parts += ["## Secrets", *_ON_SECRETS, "## Certificates, keys and Kerberos", *_ON_KEYS]
    parts += ["## Names to clients", _OF_CLIENTS, _table(["option", "librdkafka", "Spark", ""], _translated())]
    parts += [
        "## Refused",
        _table(["option", "why"], [[_code(o), f"{why[0].upper()}{why[1:]}."] for o, (why, _) in REFUSED.items()]),
    ]
    parts += [
        *_choices("Protocols", SecurityProtocol),
        *_choices("Mechanisms", Mechanism),
        *_choices("Beginnings", Beginning),
        *_choices("Isolation levels", IsolationLevel),
        *_choices("Timestamp types", TimestampType),
        *_choices("On error", OnError),
        *_choices("Formats", MessageFormat),
        *_choices("Columns of INCLUDE", Metadata),
        *_choices("Envelopes", EnvelopeKind),
    ]
    return "\n\n".join(parts)


def _translated() -> list[list[str]]:
    return [[_code(o), *(n if not n or " " in n else _code(n) for n in (t.librdkafka or "", t.spark or "")), t.reason]
            for o, t in TRANSLATIONS.items()]  # fmt: skip


def _choices(title: str, kind: type[enum.StrEnum]) -> list[str]:
    """Return a section for the values of an option."""
    docs = _attribute_docs(kind)
    return [f"## {title}", _table(["value", "meaning"], [[_code(k.value), docs[k.name]] for k in kind])]


# -- SQL ---------------------------------------------------------------------------------------------------------------

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


def _sql() -> str:
    clauses = [[_code(option.form), _meaning(option)] for option in options_of(PostgresSource.SqlOptions)]
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
            _table(["statement", "meaning"], _statements()),
            "The condition behind `REPAIR … WHERE` is for Postgres to read. Keys are values, or lists of values in "
            "parentheses.",
            "## CREATE SOURCES",
            f"```sql\n{_CREATE_EXAMPLE}\n```",
            "Clauses come before `WITH`, in any order:",
            _table(["clause", "meaning"], [*clauses, ["`FOR ALL TABLES`", "Also where none of the `FOR` is given."]]),
            "Options stand in `WITH`, in any order, with spaces or underscores in their names:",
            _table(["option", "value", "default", "meaning"], settings),
            "What the choices mean is said at the [options of a source](source-options.md). `SHOW CREATE SOURCES` "
            "gives back a statement that makes the same source, with what differs from the defaults.",
            "## Values",
            _table(["value", "like", "rules"], [[name, *words] for name, words in _VALUES.items()]),
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
        if name != "Statement":
            form, _, meaning = (inspect.getdoc(getattr(statements, name)) or "").partition("\n")[0].partition("``: ")
            rows.append([_code(form.strip("`")), f"{meaning[0].upper()}{meaning[1:]}"])
    return sorted(rows)


def _meaning(option: Option) -> str:
    text = str(option.info.description)
    return f"{text[0].upper()}{text[1:]}."


def _setting(option: Option) -> list[str]:
    default = option.info.default
    shown = "" if default in (None, ()) else option.syntax.write(default)
    form = "`true`, `false`" if isinstance(option.syntax, Flag) else _code(option.syntax.form)
    return [_code(option.setting), form, _code(shown) if shown else "", _meaning(option)]


def _error_example() -> str:
    try:
        parse(_CREATE_EXAMPLE.replace("retain history", "retain histroy"), {PostgresSource.NAME: PostgresSource})
    except SqlError as error:
        return str(error)
    raise KeyError(_CREATE_EXAMPLE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

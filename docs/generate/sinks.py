"""sinks.md, from the options of `KafkaSink` and `FunctionSink`."""

from __future__ import annotations

from inspect import signature

from docs.generate.markdown import code, table
from docs.generate.option_tables import choices, clause_rows, setting_rows

from penstock.home import Home
from penstock.kafka_client.connection import ConnectionOptions
from penstock.sinks.function.spec import FunctionSink
from penstock.sinks.kafka.spec import KafkaSink
from penstock.sinks.words import CleanupPolicy, Delivery, SinkEnvelope, SinkFormat, SubjectStrategy
from penstock.sql.syntax.options import options_of

__all__ = ["page"]

_SYNTAX = """CREATE SINK [IF NOT EXISTS] sink FROM source[.table] INTO KAFKA
  BROKER 'host:port, …' { TOPIC 'topic' | TOPIC PREFIX 'prefix' } [KEY (column, …)]
  FORMAT { JSON | AVRO | PROTOBUF } [USING SCHEMA REGISTRY 'url']
  ENVELOPE { UPSERT | DEBEZIUM | CHANGES | TRANSACTIONS }
  [WITH (option = value, …)]"""
_EXAMPLES = """CREATE SINK orders_out FROM shop.orders INTO KAFKA
  BROKER 'k1:9092' TOPIC 'orders' KEY (id)
  FORMAT AVRO USING SCHEMA REGISTRY 'http://registry:8081' ENVELOPE DEBEZIUM
  WITH (
    redact = (card = 'last four', email = 'hash'), redact key = 'env:REDACT_KEY',
    exclude columns = (notes), format timestamp = 'iso8601'
  );

-- a topic for each table
CREATE SINK everything FROM shop INTO KAFKA
  BROKER 'k1:9092,k2:9092' TOPIC PREFIX 'shop.' FORMAT JSON ENVELOPE UPSERT;

-- one topic for all tables
CREATE SINK firehose FROM shop INTO KAFKA
  BROKER 'k1:9092' TOPIC 'shop' FORMAT JSON ENVELOPE TRANSACTIONS;"""
_OTHERS = """EXPLAIN SINK firehose FROM shop INTO KAFKA BROKER 'k1:9092' TOPIC 'shop' FORMAT JSON ENVELOPE TRANSACTIONS;
SHOW SINKS;
SHOW CREATE SINK orders_out;
ALTER SINK orders_out SET (retain limit = '2 days', sasl password = 'env:NEW_PASSWORD');
DROP SINK IF EXISTS orders_out;"""
_PYTHON = """import penstock

home = penstock.connect(".penstock")
home.create_sink(
    "orders_out",
    "shop.orders",
    broker="k1:9092",
    topic="orders",
    format="json",
    envelope="upsert",
    redact={"card": "last four"},
    exclude_columns=["notes"],
)
home.alter_sink("orders_out", retain_limit="2 days")
home.drop_sink("orders_out")"""
_FUNCTION = """home.sink("to_http", "shop.orders", "my_package.my_module:to_http", retain_limit="2 days")
home.alter_sink("to_http", retain_limit="3 days")
home.drop_sink("to_http")"""
_MEANINGS = {
    "function": "a function, which is registered in this process; or its name, as `'package.module:function'`, which "
    "every process that runs the home imports. It is called with `(df, first, last)`",
    "snapshot": FunctionSink.model_fields["snapshot"].description or "",
    "retain_limit": FunctionSink.model_fields["retain_limit"].description or "",
}
_DEFAULTS = {name: repr(parameter.default) for name, parameter in signature(Home.sink).parameters.items()}
_ARGUMENTS = [
    [code(name), "required" if name == "function" else code(_DEFAULTS[name]), meaning]
    for name, meaning in _MEANINGS.items()
]
_RULES = (
    "`AVRO` and `PROTOBUF` require a schema registry. `JSON` uses one if it is given.",
    "`ENVELOPE TRANSACTIONS` requires `FORMAT JSON` and `TOPIC`, and has no registered schema. The key of a message is "
    "the position of its transaction.",
    "`TOPIC` for all tables of a source is invalid with `ENVELOPE UPSERT`, because keys of several tables would be "
    "mixed. With a schema registry, it requires `subject strategy` `'record'` or `'topic record'`.",
    "`KEY` requires a single table. Without `KEY`, the key is that of the table. `ENVELOPE UPSERT` requires a key.",
    "Columns of the key cannot be left out, and can be redacted with `'hash'` only.",
    "Every column in an option must exist in the table or, for a sink of all tables, in at least one of them.",
)


def page() -> str:
    """Return the page."""
    settings = {option.field: option for option in options_of(KafkaSink.WithOptions)}
    own = [option for field, option in settings.items() if field not in ConnectionOptions.model_fields]
    connection = [option for field, option in settings.items() if field in ConnectionOptions.model_fields]
    alterable = ", ".join(code(settings[field].setting) for field in settings if field in KafkaSink.ALTERABLE)
    header = ["option", "value", "default", "meaning"]
    return "\n\n".join(
        [
            "# Sinks",
            "A sink writes the changes of a table, or of all tables of a source, to Kafka topics. It begins with the "
            "rows of the tables, unless `snapshot` is false, and continues with every later change. `penstock run` "
            "writes the messages; the statements on this page need no connection to Kafka. [Write changes to "
            "Kafka](../how-to/write-to-kafka.md) is the guide.",
            "## CREATE SINK",
            f"```text\n{_SYNTAX}\n```",
            f"```sql\n{_EXAMPLES}\n```",
            "A table is given by its local name, or as `source.schema.table`. These clauses precede `WITH`, in any "
            "order:",
            table(["clause", "meaning"], clause_rows(options_of(KafkaSink.SqlOptions))),
            "\n".join(f"- {rule}" for rule in _RULES),
            "## Options",
            table(header, setting_rows(own)),
            "## Connection",
            "These options have the same meaning as [those of a Kafka source](kafka-options.md).",
            table(header, setting_rows(connection)),
            "## Other statements",
            f"```sql\n{_OTHERS}\n```",
            "`EXPLAIN SINK` checks a statement, its brokers, topics and registry, and lists topic, key, format and "
            "subjects of each table, with a note where something would keep the sink from writing. `DROP SINK` "
            "keeps topics and their messages. A source cannot be dropped while sinks read it.",
            f"`ALTER SINK` can change {alterable}. Other options are fixed, because consumers may depend on the "
            "messages that were already written: drop the sink and create another one. `ALTER SINK … RETRY` starts a "
            "sink again that has failed.",
            "## Python",
            "The same options with underscores are keyword arguments:",
            f"```python\n{_PYTHON}\n```",
            "## Sinks into a function",
            "`home.sink(name, source.table, function, …)` creates a sink that calls a function with the changes of a "
            "table; see [write changes to your own code](../how-to/write-to-your-own-code.md).",
            f"```python\n{_FUNCTION}\n```",
            table(["argument", "default", "meaning"], _ARGUMENTS),
            *choices("Formats", SinkFormat),
            *choices("Envelopes", SinkEnvelope),
            *choices("Delivery", Delivery),
            *choices("Subject strategies", SubjectStrategy),
            *choices("Cleanup policies", CleanupPolicy),
        ]
    )

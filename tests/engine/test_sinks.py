"""Sinks of a home: created, altered, shown and dropped, in SQL and in Python. No broker is needed for that."""

from __future__ import annotations

import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.catalog.states import SinkState
from penstock.catalog.store import Catalog
from penstock.engine.locks import hold_home
from penstock.engine.sinks import sink_reader
from penstock.errors import DefiniteError, UsageError
from penstock.home import Home
from penstock.layout import catalog_path, secrets_path
from penstock.sinks.kafka.spec import KafkaSink
from penstock.sql.errors import SqlError
from penstock.sql.show_statements import Answer

KAFKA = "INTO KAFKA BROKER 'k1:9092'"
BIDS = f"CREATE SINK bids_out FROM shop.bids {KAFKA} TOPIC 'bids' FORMAT JSON ENVELOPE UPSERT"
TO_BIDS: dict[str, Any] = {"broker": "k1:9092", "topic": "bids", "format": "json", "envelope": "upsert"}
TO_ALL = {"broker": "k1:9092", "topic_prefix": "shop.", "format": "json", "envelope": "changes"}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with a source of four tables: auctions, bids, organizations and users."""
    home = Home(tmp_path / "home")
    home.sql("CREATE SOURCE shop FROM LOAD GENERATOR AUCTION")
    return home


def catalog_of(home: Home) -> Catalog:
    return Catalog(catalog_path(home.path))


def message_of(home: Home, statement: str) -> str:
    answer = home.sql(statement)
    assert isinstance(answer, Answer)
    return answer.message


def rows(home: Home, statement: str) -> list[dict[str, Any]]:
    answer = home.sql(statement)
    assert isinstance(answer, Answer)
    return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]


def test_sink_is_created_shown_and_dropped(home: Home) -> None:
    assert message_of(home, BIDS) == "created sink bids_out; it starts at the next `penstock run`"
    assert rows(home, "SHOW SINKS") == [
        {
            "name": "bids_out",
            "source": "shop.bids",
            "into": "bids at k1:9092",
            "envelope": "upsert",
            "state": "running",
            "position": None,
            "behind": None,
            "error": None,
        }
    ]
    (shown,) = rows(home, "SHOW CREATE SINK bids_out")
    assert shown["statement"] == home.sink_statement("bids_out")
    spec = home.sink_spec("bids_out")
    assert message_of(home, "DROP SINK bids_out") == "dropped sink bids_out; its topics are kept"
    message_of(home, shown["statement"])
    assert home.sink_spec("bids_out") == spec
    assert message_of(home, "DROP SINKS IF EXISTS bids_out").startswith("dropped sink")
    assert message_of(home, "DROP SINK IF EXISTS bids_out") == "sink bids_out does not exist, skipping"
    with pytest.raises(UsageError, match="sink bids_out does not exist"):
        home.sql("DROP SINK bids_out")


def test_names(home: Home) -> None:
    home.sql(BIDS)
    with pytest.raises(DefiniteError, match="sink bids_out already exists: it is running"):
        home.sql(BIDS)
    assert message_of(home, BIDS.replace("SINK", "SINK IF NOT EXISTS")) == "sink bids_out already exists, skipping"
    with pytest.raises(UsageError, match="invalid sink name 'Bids'"):
        home.sql(BIDS.replace("bids_out", '"Bids"'))
    with pytest.raises(UsageError, match="sink bids_ou does not exist") as caught:
        home.sql("SHOW CREATE SINK bids_ou")
    assert caught.value.hint == "Did you mean bids_out? Sinks of this home: bids_out."


def test_create_in_python(home: Home) -> None:
    assert home.create_sink("bids_out", "shop.bids", **TO_BIDS) == "bids_out"
    assert home.create_sink("by_upstream", "shop.shop.bids", into="KAFKA", **TO_BIDS) == "by_upstream"
    assert home.create_sink("everything", "shop", **TO_ALL) == "everything"
    assert home.sinks() == ["bids_out", "by_upstream", "everything"]
    assert [home.sink_spec(name).table for name in home.sinks()] == ["bids", "bids", None]
    home.alter_sink("everything", retain_limit="1 day", client_id="me")
    assert home.sink_spec("everything").retain_limit == "1 day"
    home.drop_sink("everything")
    assert home.sinks() == ["bids_out", "by_upstream"]
    with pytest.raises(UsageError, match="unrecognized sink kind"):
        home.create_sink("other", "shop", into="http")


@pytest.mark.parametrize(
    ("tables", "options", "message", "hint"),
    [
        ("shp.bids", {}, "source shp does not exist", "Did you mean shop?"),
        ("shop.bid", {}, "source shop has no table bid", "Did you mean"),
        ("shop.bids", {"key": ("idd",)}, 'column "idd" in KEY does not exist in table shop.bids', '"id"?'),
        ("shop.bids", {"redact": {"amout": "null"}}, 'column "amout" in option "redact"', '"amount"?'),
        (
            "shop.bids",
            {"exclude_columns": ("id",)},
            'key column "id" of table shop.bids is excluded',
            "Include the column",
        ),
        ("shop.bids", {"include_columns": ("amount",)}, 'key column "id"', "Include the column"),
        ("shop.bids", {"redact": {"id": "null"}}, 'key column "id" of table shop.bids equal', "Use hash"),
        ("shop.bids", {"rename_columns": {"amount": "id"}}, '2 columns with the name "id"', "different names"),
        ("shop.bids", {"redact": {"amount": "hash"}}, "redaction 'hash' requires option", "reference"),
        ("shop.bids", {"redact": {"amount": "hash"}, "redact_key": "hunter2"}, "contains a literal secret", "env:NAME"),
    ],
)
def test_invalid_sinks(home: Home, tables: str, options: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        home.create_sink("out", tables, **{**TO_BIDS, **options})
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert "hunter2" not in str(caught.value)
    assert home.sinks() == []


def test_column_of_some_table_is_enough_for_a_sink_of_all_tables(home: Home) -> None:
    home.create_sink("everything", "shop", **TO_ALL, redact={"amount": "null"})
    statement = f"CREATE SINK one_of_them FROM shop {KAFKA} TOPIC PREFIX 's.' FORMAT JSON ENVELOPE CHANGES"
    home.sql(f"{statement} WITH (redact = (bids.amount = 'null'), exclude columns = (shop.bids.auction_id))")
    assert """redact = ("bids.amount" = 'null')""" in home.sink_statement("one_of_them")
    with pytest.raises(UsageError, match='column "salary" in option "redact" does not exist'):
        home.create_sink("other", "shop", **TO_ALL, redact={"salary": "null"})
    with pytest.raises(UsageError, match=r'column "users\.amount" in option "redact" does not exist'):
        home.create_sink("other", "shop", **TO_ALL, redact={"users.amount": "null"})


def test_explain_lists_topics_keys_and_subjects(home: Home) -> None:
    registry = "USING SCHEMA REGISTRY 'http://registry:8081'"
    found = rows(home, f"EXPLAIN SINK x FROM shop {KAFKA} TOPIC PREFIX 's.' FORMAT AVRO {registry} ENVELOPE DEBEZIUM")
    assert [row["topic"] for row in found[:4]] == [
        "s.shop.auctions",
        "s.shop.bids",
        "s.shop.organizations",
        "s.shop.users",
    ]
    assert found[1] == {
        "table": "shop.bids",
        "topic": "s.shop.bids",
        "key": "(id)",
        "format": "avro",
        "subjects": "s.shop.bids-key, s.shop.bids-value",
        "note": None,
    }
    assert found[4]["topic"] == "k1:9092"
    assert "error: " in found[4]["note"], "the broker does not exist"
    row, _ = rows(home, f"EXPLAIN CREATE {BIDS.removeprefix('CREATE ').replace('UPSERT', 'TRANSACTIONS')}")
    assert (row["key"], row["subjects"]) == ("position", None)
    with pytest.raises(UsageError, match="has no table"):
        home.sql(f"EXPLAIN SINK x FROM shop.nothing {KAFKA} TOPIC 't' FORMAT JSON ENVELOPE CHANGES")
    assert home.sinks() == []


def test_alter(home: Home) -> None:
    home.sql(BIDS)
    sinks = catalog_of(home).sinks
    sinks.set_state("bids_out", SinkState.FAILED, error="history expired", hint="Set retain limit.")
    assert rows(home, "SHOW ERRORS") == [
        {"name": "bids_out", "error": "history expired", "hint": "Set retain limit."},
    ]
    answer = message_of(home, "ALTER SINK bids_out SET (retain limit = '2 days', client id = 'me')")
    assert answer == "set retain limit, client id of sink bids_out: at the next `penstock run`"
    record = sinks.get("bids_out")
    assert record is not None
    assert (record.state, record.error) == (SinkState.RUNNING, None)
    assert "retain limit = '2 days'" in home.sink_statement("bids_out")


def test_retry(home: Home) -> None:
    home.sql(BIDS)
    sinks = catalog_of(home).sinks
    with pytest.raises(UsageError, match="sink bids_out is running"):
        home.retry_sink("bids_out")
    sinks.set_state("bids_out", SinkState.FAILED, error="topic does not exist", hint="Create it.")
    answer = message_of(home, "ALTER SINK bids_out RETRY")
    assert answer == "start sink bids_out again: at the next `penstock run`"
    record = sinks.get("bids_out")
    assert record is not None
    assert (record.state, record.error) == (SinkState.RUNNING, None)


@pytest.mark.parametrize(
    ("option", "column", "message"),
    [
        ("snapshot = false", 37, "option snapshot of sink bids_out cannot be changed: the sink has already started"),
        ("cleanup policy = 'delete'", 43, "cannot be changed: it applies only when topics are created"),
        ("redact = (amount = 'null')", 35, "cannot be changed: consumers may depend on"),
        ("ssl key password = 'env:X'", 45, 'option "ssl key password" requires option "ssl key location"'),
        ("allow literal secrets, sasl password = 'hunter2'", 65, "ALTER SINK does not accept a literal secret"),
    ],
)
def test_options_that_cannot_be_altered(home: Home, option: str, column: int, message: str) -> None:
    home.sql(BIDS)
    before = home.sink_spec("bids_out")
    with pytest.raises(SqlError) as caught:
        home.sql(f"ALTER SINK bids_out SET ({option})")
    assert message in caught.value.message
    assert caught.value.column == column
    assert home.sink_spec("bids_out") == before


def test_literal_secret_is_stored_in_a_private_file(home: Home) -> None:
    secret = "redact = (amount = 'hash'), redact key = 'hunter2', allow literal secrets"
    home.sql(f"{BIDS} WITH ({secret})")
    home.create_sink(
        "more", "shop.bids", **TO_BIDS, redact={"amount": "hash"}, redact_key="hunter3", allow_literal_secrets=True
    )
    files = {name: secrets_path(home.path, f"sink-{name}") / "redact_key" for name in home.sinks()}
    assert [file.read_text() for file in files.values()] == ["hunter2", "hunter3"]
    assert [stat.S_IMODE(file.stat().st_mode) for file in files.values()] == [0o600, 0o600]
    for name, file in files.items():
        assert f"redact key = 'file:{file}'" in home.sink_statement(name)
        spec = home.sink_spec(name)
        assert isinstance(spec, KafkaSink)
        key = spec.redact_key
        assert key is not None
        assert key.resolved().startswith("hunter")
    assert b"hunter" not in catalog_path(home.path).read_bytes()
    home.sql("CREATE SOURCE other FROM LOAD GENERATOR BANK")  # deletes unused secrets
    assert files["more"].exists()
    home.sql("DROP SINK more")
    assert not files["more"].exists()
    assert files["bids_out"].exists()


def test_source_or_table_with_sinks_is_not_dropped(home: Home) -> None:
    home.create_sink("bids_out", "shop.bids", **TO_BIDS)
    home.create_sink("everything", "shop", **TO_ALL)
    with pytest.raises(
        DefiniteError, match="source shop is not dropped: sinks read it: bids_out, everything"
    ) as caught:
        home.drop("shop", force=True)
    assert caught.value.hint == "Drop them first: DROP SINK bids_out; DROP SINK everything;"
    assert home.runnable() == ["shop"]
    home.sql("DROP SINK bids_out; DROP SINK everything; DROP SOURCE shop")
    assert home.names() == []


def test_running_home_completes_the_drop(home: Home) -> None:
    """While a process runs the home, the sink is only marked; the next start completes the drop of a dead process."""
    home.sql(BIDS)
    with closing(catalog_of(home).log("shop").reader()) as log:
        log.set_lease(sink_reader("bids_out"), log.frontiers().durable)
    with hold_home(home.path):
        assert "is being dropped by the running Penstock" in message_of(home, "DROP SINK bids_out")
        (row,) = rows(home, "SHOW SINKS")
        assert row["state"] == "dropping"
        with pytest.raises(UsageError, match="is being dropped"):
            home.alter_sink("bids_out", client_id="x")
    home.recover()
    assert home.sinks() == []
    with closing(catalog_of(home).log("shop").reader()) as log:
        assert sink_reader("bids_out") not in [lease.reader for lease in log.leases()]


def test_script_creates_missing_sinks(home: Home) -> None:
    script = f"CREATE SOURCE IF NOT EXISTS shop FROM LOAD GENERATOR AUCTION;\n{BIDS.replace('shop.', 'shop.shop.')};"
    assert home.create_missing(script) == [("sink", "bids_out")]
    assert home.create_missing(script) == []
    with pytest.raises(UsageError, match="sink bids_out already exists with another definition") as caught:
        home.create_missing(script.replace("'bids'", "'other'"))
    assert "line 2" in caught.value.message


def test_status(home: Home) -> None:
    home.create_sink("everything", "shop", **TO_ALL)
    (sink,) = home.status().as_json()["sinks"]
    assert sink == {
        "name": "everything",
        "source": "shop",
        "table": None,
        "into": "shop.* at k1:9092",
        "envelope": "changes",
        "format": "json",
        "state": "running",
        **dict.fromkeys(["position", "behind", "lag_ms", "messages", "error", "hint"]),
    }


def test_completions(home: Home) -> None:
    home.sql(BIDS)
    assert home.completions("DROP SINK b") == ["bids_out"]
    assert home.completions("CREATE SINK x FROM shop.b") == ["bids"]

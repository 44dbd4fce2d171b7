"""Canaries in redacted columns: they are in Postgres, in the change log and in the base table, and nowhere else.

Searched are the topics (all partitions, also messages that are not committed), the topic of positions, the schemas in
the registry, status, metrics and statements, logs, output of the process, temporary files, and all files of the home
except log and base tables. Errors of sinks with such rows are provoked.
"""

from __future__ import annotations

import base64
import json
import logging
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.engine.shop import Shop
from tests.engine.sink_topics import committed, topic_names, wait_sink
from tests.servers import SharedBroker, SharedRegistry, unique

from penstock.catalog.states import SinkState
from penstock.layout import catalog_path, lake_path, log_path
from penstock.sinks.kafka.topic_names import positions_topic_name
from penstock.testing.waiting import until

TEXT, NUMBER, KEY = "canary-Q7'x\"ü8", 7_319_246_085_531, "canary-k3y-Zw"
DEFAULT = "canary-d3fault"
"""The default of a column that is added: part of the schema of the base table, which the catalog stores."""
LAST = "9876"
REDACTED = {
    "id": "hash",
    "nothing": "null",
    "fixed": "fixed:withheld",
    "hashed": "hash",
    "card": "last four",
    "number": "last four",
    "amount": "hash",
    "doc": "hash",
    "data": "null",
    "tags": "fixed:none",
    "long": "hash",
    "added": "hash",
}
SETUP = """
CREATE TABLE public.cards (
    id text PRIMARY KEY, shown int, nothing text, fixed text, hashed text, card text, number bigint,
    amount numeric(20,2), doc jsonb, data bytea, tags text[], long text, secret text);
ALTER TABLE public.cards REPLICA IDENTITY FULL;
ALTER TABLE public.cards ALTER long SET STORAGE EXTERNAL;
CREATE TABLE public.bulky (id int PRIMARY KEY, card text, bulk text)
"""
ENVELOPES: dict[str, tuple[str, dict[str, Any]]] = {
    "upsert_avro": ("upsert", {"format": "avro"}),
    "upsert_json": ("upsert", {"format": "json", "rename_columns": {"card": "card_digits"}}),
    "changes_protobuf": ("changes", {"format": "protobuf"}),
    "changes_json": ("changes", {"format": "json", "format_numeric": "string"}),
    "debezium_avro": ("debezium", {"format": "avro"}),
    "debezium_json": ("debezium", {"format": "json", "json_schemas": True}),
    "transactions_json": ("transactions", {"format": "json"}),
    "where_json": ("changes", {"format": "json", "where": "card <> 'x'"}),
}


def varint(number: int) -> bytes:
    """Return a number as Protobuf writes it."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def forms(*texts: str) -> list[bytes]:
    """Return texts and the number as formats may write them."""
    number = [NUMBER.to_bytes(8, "little"), NUMBER.to_bytes(6, "big"), (NUMBER * 100).to_bytes(7, "big")]
    plain = [*(text.encode() for text in texts), str(NUMBER).encode(), *number, varint(NUMBER), varint(2 * NUMBER)]
    escaped = [json.dumps(TEXT)[1:-1], json.dumps(TEXT, ensure_ascii=False)[1:-1], quote(TEXT), repr(TEXT)[1:-1]]
    coded = [base64.b64encode(b"x" * lead + one)[4:-4] for one in plain if len(one) > 8 for lead in range(3)]
    return [*plain, *(text.encode() for text in escaped), *(one.hex().encode() for one in plain), *coded]


FORMS = forms(TEXT, KEY, DEFAULT)
CATALOG_FORMS = forms(TEXT, KEY)


def has_canary(text: str | bytes, among: Sequence[bytes] = FORMS) -> bytes | None:
    """Return the form of a canary that a text contains, if any."""
    found = text.encode("utf-8", "replace") if isinstance(text, str) else text
    return next((form for form in among if form in found), None)


def insert(shop: Shop, number: int) -> None:
    with shop.database.connect() as session:
        session.execute(
            """INSERT INTO cards
            (id, shown, nothing, fixed, hashed, card, number, amount, doc, data, tags, long, secret) VALUES
            (%(text)s || %(id)s, %(id)s, %(text)s, %(text)s, %(text)s, %(text)s || %(last)s, %(number)s,
            %(number)s, jsonb_build_object('name', %(text)s::text, 'n', %(number)s), %(text)s::text::bytea,
            ARRAY[%(text)s], repeat(%(text)s, 500), %(text)s)""",
            {"text": TEXT, "number": NUMBER, "id": number, "last": LAST},
        )


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files of this process."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


class Sinks:
    """Sinks of table `cards`, or of others, into topics with a prefix of their own."""

    def __init__(self, shop: Shop, broker: SharedBroker, registry: SharedRegistry) -> None:
        self._shop, self.broker, self._registry = shop, broker.bootstrap, registry
        self.prefix = unique("canary")

    def create(self, name: str, envelope: str, table: str = "shop.cards", **options: Any) -> None:
        options = {"topic": self.topic(name), "redact": REDACTED, "exclude_columns": ["secret"], **options}
        if any(redaction == "hash" for redaction in options["redact"].values()):
            options["redact_key"] = "env:CANARY_KEY"
        if options["format"] != "json" or options.pop("registered", False):
            options["schema_registry"] = self._registry.url
        self._shop.home.create_sink(name, table, broker=self.broker, envelope=envelope, **options)

    def topic(self, name: str) -> str:
        return f"{self.prefix}.{name}"

    def wait(self, name: str, count: int) -> None:
        def are_there() -> bool:
            found = self._shop.catalog.sinks.get(name)
            assert found is not None
            assert found.error is None, found.error
            return len(committed(self.broker, self.topic(name))) >= count

        until(are_there, f"{count} messages of {name}")

    def written(self, *names: str) -> bytes:
        """Return all messages in the topics of these sinks, or of all."""
        topics = [self.topic(name) for name in names] or topic_names(self.broker, self.prefix)
        found = [message for topic in topics for message in committed(self.broker, topic, "read_uncommitted")]
        return b"\n".join((each.key or b"") + b"\t" + (each.value or b"") for each in found)

    def schemas(self) -> str:
        """Return all versions of all schemas of these topics in the registry."""
        own = [subject for subject in self._get("subjects") if self.prefix in subject]
        versions = [(subject, version) for subject in own for version in self._get(f"subjects/{subject}/versions")]
        return "\n".join(self._get(f"subjects/{subject}/versions/{version}")["schema"] for subject, version in versions)

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self._registry.url}/{path}", timeout=30) as answer:
            return json.load(answer)


def printed(shop: Shop) -> str:
    """Everything that the home reports about its sinks."""
    home = shop.home
    statements = [home.sink_statement(name) for name in home.sinks()]
    shown = [repr(home.sql(text)) for text in ("SHOW SINKS", "SHOW ERRORS")]
    return "\n".join([json.dumps(home.status().as_json()), home.metrics(), *statements, *shown, *shop.reported])


def leaks(shop: Shop, temporary: Path) -> Iterator[Path]:
    """Yield the files with a canary: temporary ones, and those of the home except change log and base tables."""
    log = log_path(shop.home.path, "shop").name
    allowed = lake_path(shop.home.path, "shop")
    for path in (path for folder in (shop.home.path, temporary) for path in folder.rglob("*") if path.is_file()):
        if allowed in path.parents or path.name.startswith(log):
            continue
        is_catalog = path.name.startswith(catalog_path(shop.home.path).name)
        if has_canary(path.read_bytes(), CATALOG_FORMS if is_catalog else FORMS):
            yield path


def error_of(shop: Shop, name: str) -> str:
    def has_failed() -> bool:
        found = shop.catalog.sinks.get(name)
        return found is not None and found.state is SinkState.FAILED

    until(has_failed, f"sink {name} to fail")
    found = shop.catalog.sinks.get(name)
    assert found is not None
    return f"{found.error} {found.hint}"


@pytest.mark.slow("all places in which a value could be left are searched, for three sinks")
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["upsert_avro", "debezium_json", "transactions_json"], id="some"),
        pytest.param([*ENVELOPES], id="every", marks=pytest.mark.deep),
    ],
)
def test_canaries_of_redacted_columns(
    names: list[str],
    start_shop: Callable[..., Shop],
    broker: SharedBroker,
    registry: SharedRegistry,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.INFO, "numba")  # it logs each step of a compilation
    monkeypatch.setenv("CANARY_KEY", KEY)
    shop = start_shop(SETUP)
    shop.database.execute(f"ALTER TABLE cards ADD added text DEFAULT '{DEFAULT}'")
    insert(shop, 0)  # the added column is now part of the log, with its default
    durable = shop.home.frontiers("shop").durable
    until(lambda: shop.home.frontiers("shop").durable > durable, "capture")
    until(lambda: "added" in shop.base_columns("cards"), "the added column")
    sinks = Sinks(shop, broker, registry)
    for name in names:
        envelope, options = ENVELOPES[name]
        sinks.create(name, envelope, snapshot=False, partitions=2, **options)
    sinks.create("control", "changes", format="avro", redact={}, exclude_columns=[], snapshot=False)
    for name in [*names, "control"]:
        wait_sink(shop.catalog, name)

    insert(shop, 1)
    shop.database.execute("UPDATE cards SET shown = 5 WHERE shown = 1")  # `long` is not sent
    shop.database.execute("UPDATE cards SET id = id || 'new' WHERE shown = 5")
    shop.database.execute("DELETE FROM cards WHERE shown = 5")
    for name in names:
        sinks.wait(name, 4 if ENVELOPES[name][0] in ("changes", "transactions") else 5)
    sinks.wait("control", 4)

    assert has_canary(sinks.written("control"))
    assert LAST.encode() in sinks.written("upsert_avro")
    assert not has_canary(sinks.written(*names))
    for name in names:
        positions = committed(sinks.broker, positions_topic_name(name))
        assert positions
        assert not has_canary(b"\n".join((each.key or b"") + (each.value or b"") for each in positions))
    assert "card" in sinks.schemas()
    assert not has_canary(sinks.schemas())

    assert_hidden(shop, temporary, caplog)
    assert not has_canary("".join(capfd.readouterr()))


def assert_hidden(shop: Shop, temporary: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Assert that the log has canaries, and that no message, log line or other file has them."""
    assert not has_canary(printed(shop))
    assert not has_canary(caplog.text)
    log = log_path(shop.home.path, "shop")
    assert has_canary(b"".join(path.read_bytes() for path in log.parent.glob(f"{log.name}*")))
    assert list(leaks(shop, temporary)) == []


def test_canaries_in_rows_of_errors(
    start_shop: Callable[..., Shop],
    broker: SharedBroker,
    registry: SharedRegistry,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Sinks fail at such rows: at a missing topic, a rejected schema, and a message that is too large."""
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.INFO, "numba")
    monkeypatch.setenv("CANARY_KEY", KEY)
    shop = start_shop(SETUP.replace("secret text", "secret text, added text"))
    sinks = Sinks(shop, broker, registry)
    other = '{"type": "record", "name": "other", "fields": [{"name": "shown", "type": "string"}]}'
    registry.register(f"{sinks.topic('rejected')}-value", other)
    config = urllib.request.Request(
        f"{registry.url}/config/{sinks.topic('rejected')}-value",
        b'{"compatibility": "FULL"}',
        {"Content-Type": "application/json"},
        method="PUT",
    )
    urllib.request.urlopen(config, timeout=30).close()
    sinks.create("missing", "upsert", format="json", snapshot=False, create_topics=False)
    sinks.create("rejected", "upsert", format="avro", snapshot=False)
    bulky = {"redact": {"card": "hash"}, "exclude_columns": []}
    sinks.create("large", "upsert", "shop.bulky", format="json", snapshot=False, **bulky)
    for name in ("missing", "rejected", "large"):
        wait_sink(shop.catalog, name)
    insert(shop, 2)
    with shop.database.connect() as session:
        large = "string_agg(md5(n::text), '') FROM generate_series(1, 60000) n"  # not smaller when compressed
        session.execute(f"INSERT INTO bulky SELECT 1, %s, {large}", [TEXT])
    assert "does not exist" in error_of(shop, "missing")
    assert "not compatible" in error_of(shop, "rejected")
    assert "too large" in error_of(shop, "large")
    assert not has_canary(sinks.written())
    assert_hidden(shop, temporary, caplog)
    assert not has_canary("".join(capfd.readouterr()))


@pytest.mark.deep
def test_canaries_in_rows_of_the_snapshot(
    start_spark_shop: Callable[..., Shop],
    broker: SharedBroker,
    registry: SharedRegistry,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.INFO, "py4j")  # py4j logs every call
    monkeypatch.setenv("CANARY_KEY", KEY)
    columns = "id int PRIMARY KEY, card text, name text, long text"
    quoted = TEXT.replace("'", "''")
    shop = start_spark_shop(
        f"CREATE TABLE cards ({columns}); ALTER TABLE cards ALTER long SET STORAGE EXTERNAL;"
        f"INSERT INTO cards SELECT n, '{quoted}{LAST}', '{quoted}', repeat('{quoted}', 500)"
        " FROM generate_series(1, 20) n"
    )
    sinks = Sinks(shop, broker, registry)
    redact = {"card": "last four", "name": "hash", "long": "null"}
    for name, (envelope, options) in ENVELOPES.items():
        if "rename_columns" not in options:
            sinks.create(name, envelope, redact=redact, exclude_columns=[], **options)
    function = "tests.sinks.row_functions:unchanged"
    sinks.create("function_json", "upsert", redact=redact, exclude_columns=[], format="json", transform=function)
    sinks.create("least_json", "upsert", redact=redact, exclude_columns=[], format="json", delivery="at least once")
    named = [name for name in shop.home.sinks() if name != "transactions_json"]
    for name in named:
        sinks.wait(name, 20)
    shop.database.execute("UPDATE cards SET name = name || 'x' WHERE id = 1")  # `long` is read from the base table
    shop.database.execute("TRUNCATE cards")
    sinks.wait("upsert_avro", 41)
    sinks.wait("function_json", 41)
    sinks.wait("least_json", 41)  # Spark's tasks read, redact and write the rows of the snapshot
    sinks.wait("changes_json", 22)
    sinks.wait("transactions_json", 3)
    assert LAST.encode() in sinks.written("upsert_avro")
    assert LAST.encode() in sinks.written("function_json")
    assert LAST.encode() in sinks.written("least_json")
    assert not has_canary(sinks.written())
    assert not has_canary(printed(shop))
    assert not has_canary(caplog.text)
    assert list(leaks(shop, temporary)) == []


@pytest.mark.parametrize("lead", range(3))
def test_canaries_are_detected(lead: int) -> None:
    before = b"?" * lead
    assert has_canary(before + TEXT.encode())
    assert has_canary(base64.b64encode(before + TEXT.encode() + b"!!"))
    assert has_canary(json.dumps({"a": TEXT}))
    assert has_canary(f"error: {NUMBER}.00")
    assert has_canary(before + varint(2 * NUMBER))
    assert not has_canary(f"{TEXT[:6]} {LAST}")

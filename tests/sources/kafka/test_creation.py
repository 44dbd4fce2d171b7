"""Sources created by SQL on a real broker: topic metadata is resolved and stored, and they run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.servers import unique
from tests.sources.kafka.conftest import PASSWORD, SecureBroker
from tests.sources.kafka.sql_sources import ConfigCapture, columns, created, creation_error, described, topic_of
from tests.sources.kafka.topic_capture import Topics

from penstock.errors import UsageError
from penstock.home import Home
from penstock.model import TableName
from penstock.sources.kafka.creation import local_names


def test_single_topic_is_a_table_named_like_the_source(topics: Topics) -> None:
    name = topic_of(topics)
    config = created(topics, f"TOPIC '{name}' FORMAT TEXT INCLUDE OFFSET, PARTITION AS p")
    (table,) = config.produced()
    assert (table.name, table.alias, table.key) == (TableName("topic", name), "c", ())
    assert columns(config) == {"text": "string", "offset": "int64", "p": "int32"}
    assert config.place() == f"{name} at {topics.broker.bootstrap}"


def test_several_topics_have_one_position(topics: Topics, tmp_path: Path) -> None:
    prefix = unique("several")
    names = [topics.make(1, f"{prefix}.{table}") for table in ("a", "b")]
    listed = ", ".join(f"'{name}'" for name in names)
    config = created(topics, f"TOPICS ({listed}) FORMAT TEXT WITH (timestamp frequency ms = 20)")
    assert [table.alias for table in config.produced()] == ["a", "b"]
    capture = ConfigCapture(tmp_path, config)
    for name in names:
        topics.fill(name, 3)
    capture.run_until(lambda: [capture.upto(name) for name in names] == [[3], [3]])


@pytest.mark.parametrize(
    ("topics_of_one", "names"),
    [
        (["shop.public.orders"], ["s"]),
        (["shop.public.orders", "shop.public.users"], ["orders", "users"]),
        (["a.x", "b.x", "c.y"], ["a_x", "b_x", "y"]),
        (["a.x", "b.X"], ["a_x", "b_X"]),
        (["a.b.x", "c.x", "a_b_x"], ["a_b_x", "c_x", "a_b_x_2"]),
        (["a.", "b"], ["a_", "b"]),
    ],
)
def test_names_of_tables(topics_of_one: list[str], names: list[str]) -> None:
    assert list(local_names("s", topics_of_one).values()) == names


def test_start_offset_is_used(topics: Topics) -> None:
    name = topic_of(topics, *[(None, b"m")] * 3)
    (topic,) = created(topics, f"TOPIC '{name}' FORMAT TEXT WITH (start offset = (2))").topics
    assert topic.offsets == (2,)
    (topic,) = created(topics, f"TOPIC '{name}' FORMAT TEXT WITH (start offset = latest)").topics
    assert topic.offsets == (3,)
    assert (
        "start offset 7 is out of range"
        in creation_error(topics, f"TOPIC '{name}' FORMAT TEXT WITH (start offset = (7))").message
    )


def test_missing_topic(topics: Topics) -> None:
    assert "nowhere" in creation_error(topics, "TOPIC 'nowhere' FORMAT TEXT").message


def test_debezium_rejects_compacted_topics(topics: Topics) -> None:
    name = topics.make(1, config={"cleanup.policy": "compact"})
    both = "KEY FORMAT JSON COLUMNS (id bigint) VALUE FORMAT JSON COLUMNS (id bigint)"
    error = creation_error(topics, f"TOPIC '{name}' {both} ENVELOPE DEBEZIUM")
    assert "is compacted" in error.message
    assert "DEBEZIUM UPSERT" in error.hint
    created(topics, f"TOPIC '{name}' {both} ENVELOPE DEBEZIUM UPSERT")


def test_broker_timestamps_require_log_append_time(topics: Topics) -> None:
    name = topics.make(1)
    clauses = f"TOPIC '{name}' FORMAT TEXT WITH (timestamp type = broker)"
    error = creation_error(topics, clauses)
    assert f"--entity-name {name} --alter --add-config message.timestamp.type=LogAppendTime" in error.hint
    name = topics.make(1, config={"message.timestamp.type": "LogAppendTime"})
    created(topics, f"TOPIC '{name}' FORMAT TEXT WITH (timestamp type = broker)")


def test_capture_with_scram_and_tls(topics: Topics, secured: SecureBroker, tmp_path: Path) -> None:
    name = topic_of(topics, (None, {"id": 1}))
    (tmp_path / "password").write_text(f"{PASSWORD}\n", encoding="utf-8")
    login = f"sasl username = '{secured.user}', sasl password = 'file:{tmp_path / 'password'}'"
    source = described(
        f"CREATE SOURCE c FROM KAFKA BROKER '127.0.0.1:{secured.broker.doors.sasl_port}' TOPIC '{name}' FORMAT JSON"
        f" WITH (sasl mechanisms = 'SCRAM-SHA-512', {login}, ssl ca location = '{secured.tls('ca.crt')}',"
        " timestamp frequency ms = 20)"
    )
    (config,) = source.create_instances(1)
    assert columns(config) == {"id": "int64"}
    assert PASSWORD not in json.dumps(json.loads(config.model_dump_json()), ensure_ascii=False)
    capture = ConfigCapture(tmp_path, config)
    topics.fill(name, 4)
    capture.run_until(lambda: capture.upto(name) == [5])
    assert source.check(config).ready


def test_backlog_is_captured_in_bounded_ticks(topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.sources.kafka.tick_instance._MOST_MESSAGES", 10)
    name = topics.make(3)
    topics.fill(name, 30, 5, 0)
    config = created(topics, f"TOPIC '{name}' FORMAT TEXT WITH (timestamp frequency ms = 10)")
    capture = ConfigCapture(tmp_path, config)
    capture.run_until(lambda: capture.upto(name) == [30, 5, 0])
    ticks = capture.ticks(name).to_pylist()
    sizes = [[last - first for first, last in zip(t["from"], t["to"], strict=True)] for t in ticks]
    assert all(sum(size) <= 10 + 3 for size in sizes)
    assert sizes[0] == [9, 2, 0], "in proportion to the backlog"
    assert len(sizes) == 4


def test_statistics_are_stored_on_request(topics: Topics, tmp_path: Path) -> None:
    name = topics.make(1)
    options = "timestamp frequency ms = 20, statistics interval ms = 50"
    capture = ConfigCapture(tmp_path, created(topics, f"TOPIC '{name}' FORMAT TEXT WITH ({options})"))
    capture.run_until((capture.state / "statistics.json").exists)
    statistics = json.loads((capture.state / "statistics.json").read_text(encoding="utf-8"))
    assert statistics["brokers"]


def test_home_stores_a_literal_secret_and_removes_it(topics: Topics, secured: SecureBroker, tmp_path: Path) -> None:
    name = topic_of(topics, (None, {"id": 1}))
    home = Home(tmp_path / "home")
    create = (
        f"CREATE SOURCE c FROM KAFKA BROKER '127.0.0.1:{secured.broker.doors.sasl_port}' TOPIC '{name}' FORMAT JSON"
        f" WITH (sasl mechanisms = 'SCRAM-SHA-512', sasl username = '{secured.user}', sasl password = '{PASSWORD}',"
        f" ssl ca location = '{secured.tls('ca.crt')}', allow literal secrets)"
    )
    home.sql(create)
    secret_file = home.path / "secrets" / "c" / "sasl_password"
    assert f"sasl password = 'file:{secret_file}'" in home.statement("c")
    secret = PASSWORD.encode()
    files_with_secret = [path for path in home.path.rglob("*") if path.is_file() and secret in path.read_bytes()]
    assert files_with_secret == [secret_file]
    assert home.check("c").ready
    (tmp_path / "moved").write_text("hunter2\n", encoding="utf-8")
    home.sql(f"ALTER SOURCES c SET (sasl password = 'file:{tmp_path / 'moved'}')")
    assert not home.check("c").ready
    with pytest.raises(UsageError, match="reading has already started"):
        home.sql("ALTER SOURCES c SET (start offset = latest)")
    home.sql("DROP SOURCE c")
    assert not secret_file.exists()


def test_explain_shows_what_would_be_created(topics: Topics, tmp_path: Path) -> None:
    name = topic_of(topics, (None, {"id": 1, "name": "x"}))
    home = Home(tmp_path / "home")
    plan = home.sql(f"EXPLAIN CREATE SOURCE c FROM KAFKA BROKER '{topics.broker.bootstrap}' TOPIC '{name}' FORMAT JSON")
    assert "c.c" in repr(plan)
    assert "2 columns, no key" in repr(plan)
    assert home.sources() == []

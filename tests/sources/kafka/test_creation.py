"""Sources over a real broker, made by SQL: what is found of their topics is fixed and stored, and they run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.servers import unique
from tests.sources.kafka.conftest import PASSWORD, Guarded
from tests.sources.kafka.followed import Topics
from tests.sources.kafka.made import Made, columns, created, described, refused, topic_of

from penstock.errors import UsageError
from penstock.home import Home
from penstock.model import TableName
from penstock.sources.kafka.topic_names import local_names


def test_one_topic_is_a_table_that_is_called_as_the_source(topics: Topics) -> None:
    name = topic_of(topics)
    made = created(topics, f"TOPIC '{name}' FORMAT TEXT INCLUDE OFFSET, PARTITION AS p")
    (table,) = made.produced()
    assert (table.name, table.alias, table.key) == (TableName("topic", name), "c", ())
    assert columns(made) == {"text": "string", "offset": "int64", "p": "int32"}
    assert made.place() == f"{name} at {topics.broker.bootstrap}"


def test_several_topics_have_one_position(topics: Topics, tmp_path: Path) -> None:
    prefix = unique("several")
    names = [topics.make(1, f"{prefix}.{table}") for table in ("a", "b")]
    listed = ", ".join(f"'{name}'" for name in names)
    made = created(topics, f"TOPICS ({listed}) FORMAT TEXT WITH (timestamp frequency ms = 20)")
    assert [table.alias for table in made.produced()] == ["a", "b"]
    followed = Made(tmp_path, made)
    for name in names:
        topics.fill(name, 3)
    followed.run_until(lambda: [followed.upto(name) for name in names] == [[3], [3]])


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


def test_it_starts_where_it_is_told_to(topics: Topics) -> None:
    name = topic_of(topics, *[(None, b"m")] * 3)
    (topic,) = created(topics, f"TOPIC '{name}' FORMAT TEXT WITH (start offset = (2))").topics
    assert topic.offsets == (2,)
    (topic,) = created(topics, f"TOPIC '{name}' FORMAT TEXT WITH (start offset = latest)").topics
    assert topic.offsets == (3,)
    assert "cannot begin at 7" in refused(topics, f"TOPIC '{name}' FORMAT TEXT WITH (start offset = (7))").message


def test_a_topic_that_is_not_there(topics: Topics) -> None:
    assert "nowhere" in refused(topics, "TOPIC 'nowhere' FORMAT TEXT").message


def test_debezium_wants_every_record(topics: Topics) -> None:
    name = topics.make(1, config={"cleanup.policy": "compact"})
    both = "KEY FORMAT JSON COLUMNS (id bigint) VALUE FORMAT JSON COLUMNS (id bigint)"
    error = refused(topics, f"TOPIC '{name}' {both} ENVELOPE DEBEZIUM")
    assert "is compacted" in error.message
    assert "DEBEZIUM UPSERT" in error.hint
    created(topics, f"TOPIC '{name}' {both} ENVELOPE DEBEZIUM UPSERT")


def test_times_by_the_broker(topics: Topics) -> None:
    name = topics.make(1)
    clauses = f"TOPIC '{name}' FORMAT TEXT WITH (timestamp type = broker)"
    error = refused(topics, clauses)
    assert f"--entity-name {name} --alter --add-config message.timestamp.type=LogAppendTime" in error.hint
    name = topics.make(1, config={"message.timestamp.type": "LogAppendTime"})
    created(topics, f"TOPIC '{name}' FORMAT TEXT WITH (timestamp type = broker)")


def test_through_the_guarded_door_with_scram_and_tls(topics: Topics, guarded: Guarded, tmp_path: Path) -> None:
    name = topic_of(topics, (None, {"id": 1}))
    (tmp_path / "password").write_text(f"{PASSWORD}\n", encoding="utf-8")
    login = f"sasl username = '{guarded.user}', sasl password = 'file:{tmp_path / 'password'}'"
    source = described(
        f"CREATE SOURCE c FROM KAFKA BROKER '127.0.0.1:{guarded.broker.doors.sasl_port}' TOPIC '{name}' FORMAT JSON"
        f" WITH (sasl mechanisms = 'SCRAM-SHA-512', {login}, ssl ca location = '{guarded.tls('ca.crt')}',"
        " timestamp frequency ms = 20)"
    )
    (made,) = source.create_instances(1)
    assert columns(made) == {"id": "int64"}
    assert PASSWORD not in json.dumps(json.loads(made.model_dump_json()), ensure_ascii=False)
    followed = Made(tmp_path, made)
    topics.fill(name, 4)
    followed.run_until(lambda: followed.upto(name) == [5])
    assert source.check(made).ready


def test_a_backlog_is_taken_in_bounded_steps(topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.sources.kafka.tick_instance._MOST_MESSAGES", 10)
    name = topics.make(3)
    topics.fill(name, 30, 5, 0)
    made = created(topics, f"TOPIC '{name}' FORMAT TEXT WITH (timestamp frequency ms = 10)")
    followed = Made(tmp_path, made)
    followed.run_until(lambda: followed.upto(name) == [30, 5, 0])
    ticks = followed.ticks(name).to_pylist()
    sizes = [[last - first for first, last in zip(t["from"], t["to"], strict=True)] for t in ticks]
    assert all(sum(size) <= 10 + 3 for size in sizes)
    assert sizes[0] == [9, 2, 0], "in proportion"
    assert len(sizes) == 4


def test_statistics_are_kept_when_they_are_asked_for(topics: Topics, tmp_path: Path) -> None:
    name = topics.make(1)
    options = "timestamp frequency ms = 20, statistics interval ms = 50"
    followed = Made(tmp_path, created(topics, f"TOPIC '{name}' FORMAT TEXT WITH ({options})"))
    followed.run_until((followed.state / "statistics.json").exists)
    told = json.loads((followed.state / "statistics.json").read_text(encoding="utf-8"))
    assert told["brokers"]


def test_a_home_keeps_a_literal_secret_and_forgets_it(topics: Topics, guarded: Guarded, tmp_path: Path) -> None:
    name = topic_of(topics, (None, {"id": 1}))
    home = Home(tmp_path / "home")
    create = (
        f"CREATE SOURCE c FROM KAFKA BROKER '127.0.0.1:{guarded.broker.doors.sasl_port}' TOPIC '{name}' FORMAT JSON"
        f" WITH (sasl mechanisms = 'SCRAM-SHA-512', sasl username = '{guarded.user}', sasl password = '{PASSWORD}',"
        f" ssl ca location = '{guarded.tls('ca.crt')}', allow literal secrets)"
    )
    home.sql(create)
    kept = home.path / "secrets" / "c" / "sasl_password"
    assert f"sasl password = 'file:{kept}'" in home.statement("c")
    secret = PASSWORD.encode()
    holding = [path for path in home.path.rglob("*") if path.is_file() and secret in path.read_bytes()]
    assert holding == [kept]
    assert home.check("c").ready
    (tmp_path / "moved").write_text("hunter2\n", encoding="utf-8")
    home.sql(f"ALTER SOURCES c SET (sasl password = 'file:{tmp_path / 'moved'}')")
    assert not home.check("c").ready
    with pytest.raises(UsageError, match="reading has begun there"):
        home.sql("ALTER SOURCES c SET (start offset = latest)")
    home.sql("DROP SOURCE c")
    assert not kept.exists()


def test_explain_tells_what_would_be_made(topics: Topics, tmp_path: Path) -> None:
    name = topic_of(topics, (None, {"id": 1, "name": "x"}))
    home = Home(tmp_path / "home")
    told = home.sql(f"EXPLAIN CREATE SOURCE c FROM KAFKA BROKER '{topics.broker.bootstrap}' TOPIC '{name}' FORMAT JSON")
    assert "c.c" in repr(told)
    assert "2 columns, no key" in repr(told)
    assert home.sources() == []

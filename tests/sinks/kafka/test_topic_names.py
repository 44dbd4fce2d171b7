"""Names of topics: those of Debezium where it has them, and never the same for two tables."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.model import TableName
from penstock.sinks.kafka.topic_names import check_topic_name, topic_name, topics_of_tables


@pytest.mark.parametrize(
    ("table", "topic"),
    [
        (TableName("public", "orders"), "shop.public.orders"),
        (TableName("public", "Order Items"), "shop.public.Order_Items"),
        (TableName("öffentlich", 'a"b$c'), "shop._ffentlich.a_b_c"),
        (TableName("public", "x😀y"), "shop.public.x__y"),
        (TableName("public", "a.b-c_d"), "shop.public.a.b-c_d"),
    ],
)
def test_names_of_debezium(table: TableName, topic: str) -> None:
    assert topic_name(table, prefix="shop.") == topic


@given(st.text(min_size=1, max_size=60), st.text(min_size=1, max_size=60))
def test_every_name_is_valid(schema: str, name: str) -> None:
    found = topic_name(TableName(schema, name))
    assert re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", found)
    assert check_topic_name(found) == found


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "a/b", "x" * 250])
def test_invalid_names(name: str) -> None:
    with pytest.raises(UsageError):
        topic_name(TableName("public", "orders"), fixed=name)
    if len(name) > 2:
        with pytest.raises(UsageError):
            topic_name(TableName("public", "orders"), prefix=name)


def test_one_topic_for_all_tables() -> None:
    tables = [TableName("public", "a"), TableName("public", "b")]
    assert topics_of_tables(tables, fixed="all") == dict.fromkeys(tables, "all")
    assert topics_of_tables(tables, prefix="p.") == {tables[0]: "p.public.a", tables[1]: "p.public.b"}


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        (TableName("public", "a b"), TableName("public", "a_b"), "have the same topic public.a_b"),
        (TableName("public", "a_b"), TableName("public_a", "b"), "differ only in dots and underscores"),
    ],
)
def test_two_tables_with_the_same_topic(one: TableName, other: TableName, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        topics_of_tables([one, other])
    assert str(one) in caught.value.message
    assert str(other) in caught.value.message

"""Labels of shards, and the sources of the shards of a sharded source. No database is needed."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.sources.postgres.shard_labels import shard_labels, shard_suffixes
from penstock.sources.postgres.spec import PostgresSource

S1, S2 = "postgresql://u@db1/s1", "postgresql://u@db2/s2"


@pytest.mark.parametrize(
    ("urls", "labels"),
    [
        ((S1, S2), ["s1", "s2"]),
        (("postgresql://u@h/s1", "postgresql://u@h/s2"), ["s1", "s2"]),
        (("postgresql://u@db1/shop", "postgresql://u@db2/shop"), ["db1", "db2"]),
        (("postgresql://u@h:1/shop", "postgresql://u@h:2/shop"), ["h:1", "h:2"]),
        (("postgresql:///a", "postgresql:///b"), ["a", "b"]),
        (("service=one", "service=two"), ["one", "two"]),
        ((S1, "postgresql://u@db1/s2", "postgresql://u@db2/s1"), ["db1:5432/s1", "db1:5432/s2", "db2:5432/s1"]),
        (("postgresql://u@h/shop", "postgresql://u@h/Shop"), ["h:5432/shop", "h:5432/Shop"]),
    ],
)
def test_shards_are_labelled_by_the_first_part_that_differs(urls: tuple[str, ...], labels: list[str]) -> None:
    assert shard_labels(urls) == labels
    assert list(PostgresSource.from_urls(urls, "shop").shards()) == labels


@pytest.mark.parametrize(
    ("labels", "suffixes"),
    [
        (["s1", "S2"], ["s1", "s2"]),
        (["db1.example.com", "db2.example.com"], ["db1_example_com", "db2_example_com"]),
        (["h:5432/shop", "h:5432/Shop"], ["h_5432_shop_1", "h_5432_shop_2"]),
        (["é", "ü"], ["1", "2"]),
        (["a" * 60 + "1", "a" * 60 + "2"], ["a" * 20 + "_1", "a" * 20 + "_2"]),
    ],
)
def test_suffixes_contain_only_valid_characters(labels: list[str], suffixes: list[str]) -> None:
    assert shard_suffixes(labels) == suffixes


def test_each_shard_is_a_source_of_its_own() -> None:
    whole = PostgresSource.from_urls([f"{S1}?password=env:ONE", S2], "shop", password="env:ALL", schemas=("sales",))
    one, two = whole.shards().values()
    assert (one.name, one.slot, one.publication) == ("shop_s1", "penstock_shop_s1", "penstock_shop_s1")
    assert (two.name, two.slot, two.publication) == ("shop_s2", "penstock_shop_s2", "penstock_shop_s2")
    assert (one.connection, one.password) == ("user=u dbname=s1 host=db1", "env:ONE")
    assert (two.connection, two.password) == ("user=u dbname=s2 host=db2", "env:ALL")
    assert one.schemas == two.schemas == ("sales",)
    assert one.shards() == {None: one}
    assert PostgresSource.model_validate_json(whole.model_dump_json()) == whole


def test_user_owned_objects_have_the_same_name_on_every_shard() -> None:
    user_owned = {"publication": "p", "publication_ownership": "user", "slot": "s", "slot_ownership": "user"}
    for shard in PostgresSource.from_urls([S1, S2], "shop", **user_owned).shards().values():
        assert (shard.publication, shard.slot) == ("p", "s")


def test_long_name_is_truncated() -> None:
    names = [shard.name for shard in PostgresSource.from_urls([S1, S2], "a" * 41).shards().values()]
    assert names == ["a" * 38 + "_s1", "a" * 38 + "_s2"]


@pytest.mark.parametrize(
    ("create", "why"),
    [
        (lambda: PostgresSource.of("shop", connections=(S1,), publication="p", slot="s"), "has one"),
        (lambda: PostgresSource.from_urls([], "shop"), "has none"),
        (lambda: PostgresSource.from_urls([S1, f"{S1}?user=other"], "shop"), "db1:5432/s1 is listed twice"),
        (lambda: PostgresSource.from_urls([S1, "postgresql://u:secret@db2/s2"], "shop"), "password in clear"),
        (
            lambda: PostgresSource.of("shop", connection=S1, connections=(S1, S2), publication="p", slot="s"),
            "both connection and connections",
        ),
        (lambda: PostgresSource.from_urls([S1, S2], "shop").conninfo(), "has 2 databases"),
    ],
)
def test_invalid_shards_are_rejected(create: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        create()
    assert "secret" not in str(caught.value)

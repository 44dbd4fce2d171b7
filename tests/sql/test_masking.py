"""Secrets are masked in text that cannot be parsed, and nothing else is masked."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.sql.errors import SqlError, secret_spans
from penstock.sql.grammar import parse
from tests.sql.kinds import KINDS


def masked(text: str) -> str:
    for start, end in reversed(secret_spans(text)):
        text = f"{text[:start]}***{text[end:]}"
    return text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("PASSWORD 'a b' FOR", "PASSWORD *** FOR"),
        ("password = 'it''s' , x", "password = *** , x"),
        ("PASSWORD a!b x", "PASSWORD *** x"),
        ("PASSWORD /* not 'this' */ 'a' x", "PASSWORD /* not 'this' */ *** x"),
        ("PASSWORD -- it is\n 'a'", "PASSWORD -- it is\n ***"),
        ("PASSWORD'a'", "PASSWORD***"),
        ("passwrd 'a'", "passwrd ***"),
        ("sasl_password = a", "sasl_password = ***"),
        ("'host=db password=a user=b'", "'host=db password=*** user=b'"),
        ("'x PASSWORD 'a b' y", "'x PASSWORD '***' y"),
        ("'postgresql://u:a@b:c@h:5432/d'", "'postgresql://u:***@h:5432/d'"),
        ("'postgresql://u:a/b", "'postgresql://u:***/b"),
        ("\" PASSWORD 'a' x", '" PASSWORD *** x'),
        ("redact key = 'a b', x", "redact key = ***, x"),
        ("REDACT_KEY = a", "REDACT_KEY = ***"),
        ("BROKER 'k:9092,u:a!b@k:9092'", "BROKER 'k:9092,u:***@k:9092'"),
    ],
)
def test_a_secret_is_masked(text: str, shown: str) -> None:
    assert masked(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "PASSWORD 'env:SHOP_PASSWORD'\n FOR ALL TABLES WITH (x = 'y')",
        "PASSWORD 'file:/secrets/it' FOR",
        "PASSWORD FOR ALL TABLES",
        "PASSWORD",
        "WITH (allow literal secrets = true)",
        "exclude columns = (public.users.password_hash, public.users.token)",
        "FOR TABLES (public.passwords AS p)",
        "CONNECTION 'postgresql://penstock@db:5432,db2:5433/shop?sslmode=require'",
        "CONNECTION 'postgresql://[::1]:5432/shop'",
        "BROKER 'k1:9092,k2:9092' TOPIC 'clicks'",
        "SELECT past FROM shop.orders WHERE x = 'y'",
        "KEY (id) FORMAT JSON WITH (redact = (card = 'hash'), redact key = 'env:KEY')",
    ],
)
def test_other_text_is_not_masked(text: str) -> None:
    assert masked(text) == text


SECRETS = st.text("QZJX0123456789!#/:@", min_size=8, max_size=12).map("Q{}".format)
NOISE = st.text("'\"`;(),.=-/*abW \n", max_size=4)


@settings(max_examples=400, deadline=None)
@given(SECRETS, NOISE, NOISE, NOISE, st.booleans())
def test_secret_is_never_shown_in_malformed_statements(
    secret: str, first: str, second: str, third: str, in_url: bool
) -> None:
    given = f"CONNECTION 'postgresql://u:{secret}@db/shop'" if in_url else f"PASSWORD '{secret}'"
    text = f"CREATE SOURCES {first} shop FROM POSTGRES {second} {given} {third} FOR ALL TABLES WITH (failover)"
    try:
        statement = parse(text, KINDS)
    except SqlError as error:
        assert secret not in str(error)
    else:
        assert secret not in repr(statement)

"""ALTER SOURCES … SET: an option that the source rejects is reported at its position in the statement."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.errors import UsageError
from penstock.executor import execute
from penstock.sources.kafka.spec import KafkaSource
from penstock.sql.errors import SqlError
from penstock.sql.grammar import parse

KINDS = {"KAFKA": KafkaSource}
CLICKS = KafkaSource.of("c", broker="k:9092", topic="t", format="text")


def alter(text: str) -> Any:
    """Execute a statement on a home whose only source is CLICKS."""

    def set_options(source: str, **options: Any) -> None:
        if source != "c":
            message = f"source {source} does not exist"
            raise UsageError(message)
        KafkaSource.of("c", **{**CLICKS.model_dump(exclude={"name"}), **options})

    home = SimpleNamespace(alter=set_options, spec=lambda _: CLICKS, runner=lambda: None)
    statement = parse(text, KINDS)
    assert statement is not None
    return execute(cast("Any", home), statement, cast("Any", None))


def test_options_are_set() -> None:
    assert alter("ALTER SOURCES c SET (on error = quarantine, quarantine limit = 3)").message.startswith(
        "set on error, quarantine limit of c"
    )


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        (
            "ALTER SOURCES c SET (client id = 'x', quarantine limit = 3)",
            58,
            'option "quarantine limit" requires option "on error" to be "quarantine"',
        ),
        ("ALTER SOURCES c SET (sasl mechanisms = OAUTHBEARER)", 40, 'not supported for option "sasl mechanisms"'),
        (
            "ALTER SOURCES c SET (allow literal secrets, sasl password = 'hunter2')",
            61,
            'does not accept a literal secret for option "sasl password"',
        ),
    ],
)
def test_error_has_the_position_of_the_option(text: str, column: int, message: str) -> None:
    with pytest.raises(SqlError) as caught:
        alter(text)
    assert message in caught.value.message
    assert caught.value.column == column
    assert caught.value.hint
    assert "hunter2" not in str(caught.value)


def test_error_of_the_source_has_no_position() -> None:
    with pytest.raises(UsageError, match="source d does not exist") as caught:
        alter("ALTER SOURCES d SET (client id = 'x')")
    assert not isinstance(caught.value, SqlError)

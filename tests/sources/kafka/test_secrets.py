"""A plaintext secret is sealed until it is stored; a reference may be stored anywhere."""

from __future__ import annotations

import copy
import pickle
import stat
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import PydanticSerializationError

from penstock.errors import DefiniteError, UsageError
from penstock.kafka_client.secrets import Secret
from penstock.kafka_client.spark_options import write_private
from penstock.sources.kafka.with_options import KafkaWithOptions

CANARY = "c4nary-in-a-mine"
SECRETS = ("sasl_password", "ssl_key_password", "schema_registry_password", "schema_registry_ssl_key_password")
NEEDED: dict[str, Any] = {
    "sasl_mechanisms": "SCRAM-SHA-512",
    "sasl_username": "me",
    "ssl_key_location": "/k",
    "ssl_certificate_location": "/c",
    "schema_registry_username": "me",
    "schema_registry_ssl_key_location": "/k",
    "schema_registry_ssl_certificate_location": "/c",
}


def literal() -> KafkaWithOptions:
    """Return options with a distinct plaintext value for every secret."""
    secrets = {name: f"{CANARY} {name}" for name in SECRETS}
    return KafkaWithOptions.given(**NEEDED, **secrets, allow_literal_secrets=True)


def test_all_secrets_are_tested() -> None:
    assert set(literal().secrets()) == set(SECRETS)
    secret_fields = {name for name, field in KafkaWithOptions.model_fields.items() if "Secret" in str(field.annotation)}
    assert secret_fields == set(SECRETS)
    assert {name for name in KafkaWithOptions.model_fields if "password" in name} == secret_fields


@pytest.mark.parametrize("name", SECRETS)
def test_plaintext_secret_is_rejected_and_not_printed(name: str) -> None:
    references = dict.fromkeys(SECRETS, "env:X")
    with pytest.raises(UsageError, match=f'"{name}" contains a literal secret') as caught:
        KafkaWithOptions.given(**NEEDED, **references | {name: CANARY})
    assert CANARY not in str(caught.value)
    assert "env:NAME" in caught.value.hint


def test_sealed_secret_is_never_printed() -> None:
    options = literal()
    output = [repr(options), str(options), f"{options!r:>10}", repr(options.secrets()), str(Secret(CANARY))]
    output += [repr(copy.deepcopy(options)), repr(vars(options))]
    for dump in (options.model_dump, options.model_dump_json, lambda: options.model_dump(mode="json")):
        with pytest.raises(PydanticSerializationError, match="was not stored yet") as caught:
            dump()
        output.append(str(caught.value))
    with pytest.raises(UsageError, match="was not stored yet") as rejected:
        pickle.dumps(options)
    assert [text for text in [*output, str(rejected.value)] if CANARY in text] == []


def test_stored_secrets_become_references(tmp_path: Path) -> None:
    def store(option: str, secret: str) -> str:
        write_private(tmp_path / "secrets" / option, f"{secret}\n")
        return f"file:{tmp_path / 'secrets' / option}"

    sealed = literal()
    stored_options = sealed.kept(store)
    assert {name: secret.resolved() for name, secret in stored_options.secrets().items()} == {
        name: f"{CANARY} {name}" for name in SECRETS
    }
    stored = stored_options.model_dump_json()
    assert CANARY not in stored
    assert KafkaWithOptions.model_validate_json(stored) == stored_options == pickle.loads(pickle.dumps(stored_options))
    assert stored_options != sealed
    for name in SECRETS:
        path = tmp_path / "secrets" / name
        assert stored_options.secrets()[name].reference == f"file:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700


def test_references_are_stored_unchanged() -> None:
    options = KafkaWithOptions.given(sasl_mechanisms="PLAIN", sasl_username="me", sasl_password="env:SECRET")

    def fail(option: str, secret: str) -> str:
        raise AssertionError(option)

    assert options.kept(fail) == options
    assert "env:SECRET" in repr(options)


@pytest.mark.parametrize("given", ["", "two\nlines", "env:not a name", "file:", "line\n", "a\u2028b"])
def test_invalid_secrets_are_rejected(given: str) -> None:
    with pytest.raises(UsageError) as caught:
        Secret(given)
    assert caught.value.hint


def test_secret_must_be_a_string() -> None:
    with pytest.raises(UsageError, match=r"sasl_password.: .* not a string"):
        KafkaWithOptions.given(sasl_password=123)


def test_private_file_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    write_private(path, "one")
    before = path.stat().st_ino
    write_private(path, "one")
    assert path.stat().st_ino == before  # an unchanged file is not rewritten
    path.chmod(0o644)
    write_private(path, "one")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    write_private(path, "two")
    assert path.read_text(encoding="utf-8") == "two"
    assert [found.name for found in path.parent.iterdir()] == ["b"]


def test_unwritable_private_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("in the way", encoding="utf-8")
    with pytest.raises(DefiniteError, match="could not write private file") as caught:
        write_private(tmp_path / "a" / "b", CANARY)
    assert CANARY not in str(caught.value)

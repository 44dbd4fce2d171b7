"""The registry: ids are looked up once and cached; an unavailable registry is a transient error."""

from __future__ import annotations

import base64
import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from tests.formats.conftest import decoded, encoded, framed, record, rows
from tests.servers import SharedRegistry, unique

from penstock.errors import DefiniteError, TransientError, UsageError
from penstock.formats import AvroFormat, JsonFormat, Registry, RegistryAddress, ResolvedFormat, resolve
from penstock.testing.waiting import PATIENCE

FIRST = record(("id", "long"))
SECOND = record({"name": "note", "type": ["null", "string"], "default": None}, ("id", "long"))
THIRD = record(("id", "string"))


def test_several_writer_schemas_and_an_unknown_one_in_one_batch(
    registry: SharedRegistry, address: RegistryAddress
) -> None:
    subject = unique("mix")
    ids = [registry.register(f"{subject}-{n}", json.dumps(one)) for n, one in enumerate((FIRST, SECOND, THIRD))]
    client = Registry(address)
    resolved = resolve(AvroFormat(registry=address), subject=f"{subject}-1", registry=client)
    assert ResolvedFormat.model_validate_json(resolved.model_dump_json()) == resolved
    result = decoded(
        resolved,
        framed(ids[0], encoded(FIRST, {"id": 1})),
        framed(ids[1], encoded(SECOND, {"id": 2, "note": "n"})),
        framed(ids[2], encoded(THIRD, {"id": "x"})),
        framed(999_999, b"\x02"),
        None,
        framed(ids[0], encoded(FIRST, {"id": 3})),
        registry=client,
    )
    assert result.rows.to_pylist() == [
        {"note": None, "id": 1},
        {"note": "n", "id": 2},
        None,
        None,
        None,
        {"note": None, "id": 3},
    ]
    assert result.problems.to_pylist() == [
        None,
        None,
        f'AVRO: field "id": string in the message, expected long (schema id {ids[2]}, 7 bytes)',
        "AVRO: schema id not found in the schema registry (schema id 999999, 6 bytes)",
        None,
        None,
    ]


def test_references_are_resolved(registry: SharedRegistry, address: RegistryAddress) -> None:
    money = record(("units", "long"), name="shop.Money")
    subjects = unique("money"), unique("bills")
    registry.register(subjects[0], json.dumps(money))
    bill = record(("total", "shop.Money"), ("tip", ["null", "shop.Money"]), name="shop.Bill")
    needed = [{"name": "shop.Money", "subject": subjects[0], "version": 1}]
    identity = registry.register(subjects[1], json.dumps(bill), "AVRO", needed)
    resolved = resolve(AvroFormat(registry=address), subject=subjects[1])
    assert rows(resolved, framed(identity, b"\x0a\x02\x0c")) == [{"total": {"units": 5}, "tip": {"units": 6}}]


def test_missing_subject_and_subject_of_another_format_are_rejected(
    registry: SharedRegistry, address: RegistryAddress
) -> None:
    with pytest.raises(DefiniteError, match="no subject 'nope'"):
        resolve(AvroFormat(registry=address), subject="nope")
    with pytest.raises(UsageError, match="missing schema registry subject"):
        resolve(AvroFormat(registry=address))
    subject = unique("kind")
    registry.register(subject, json.dumps(FIRST))
    with pytest.raises(UsageError, match="has format AVRO, expected JSON") as caught:
        resolve(JsonFormat(registry=address), subject=subject)
    assert "FORMAT AVRO" in caught.value.hint


# -- a proxy in front of the registry, which stops faster than a registry ------------------------------------------


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], port: int = 0) -> Iterator[int]:
    """Run an HTTP server on a local port until the end of the block."""
    server = HTTPServer(("127.0.0.1", port), handler)
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def proxy_to(url: str) -> type[BaseHTTPRequestHandler]:
    """Return a handler that forwards requests to a registry."""

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with urllib.request.urlopen(url + self.path, timeout=PATIENCE) as response:
                body = response.read()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    return Proxy


def test_unavailable_registry_is_a_transient_error_and_cached_schemas_are_used(
    registry: SharedRegistry, tmp_path: Path
) -> None:
    subject = unique("down")
    known = registry.register(subject, json.dumps(FIRST))
    later = registry.register(unique("later"), json.dumps(SECOND))
    message = framed(known, encoded(FIRST, {"id": 1}))
    new = framed(later, encoded(SECOND, {"id": 2, "note": None}))
    with serving(proxy_to(registry.url)) as port:
        address = RegistryAddress(url=f"http://127.0.0.1:{port}")
        client = Registry(address, tmp_path / "cache")
        resolved = resolve(AvroFormat(registry=address), subject=subject, registry=client)
        assert rows(resolved, message, registry=client) == [{"id": 1}]
    assert rows(resolved, message, registry=client) == [{"id": 1}]
    assert rows(resolved, message, registry=Registry(address, tmp_path / "cache")) == [{"id": 1}]
    with pytest.raises(TransientError, match="does not respond") as caught:
        decoded(resolved, message, new, registry=client)
    assert "No message is lost" in caught.value.hint
    with serving(proxy_to(registry.url), port):
        assert rows(resolved, message, new, registry=client) == [{"id": 1}, {"id": 2}]


# -- responses that a healthy registry does not send ---------------------------------------------------------------


class OddResponses(BaseHTTPRequestHandler):
    """Responds with the status code in the path, and records the requests."""

    requests: list[tuple[str, str | None]] = []  # noqa: RUF012 - one server at a time

    def do_GET(self) -> None:
        self.requests.append((self.path, self.headers.get("Authorization")))
        code = int(self.path.rsplit("/", 1)[1])
        body = {599: b"<html>", 404: b"<html>no such page</html>"}.get(code, b'{"error_code": 1}')
        self.send_response(200 if code == 599 else code)
        if code == 302:
            self.send_header("Location", "/schemas/ids/599")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def odd_server() -> Iterator[str]:
    OddResponses.requests.clear()
    with serving(OddResponses) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("code", "kind"),
    [(500, TransientError), (503, TransientError), (404, TransientError), (302, TransientError), (599, TransientError)],
)
def test_odd_responses_do_not_mean_an_unknown_id(odd_server: str, code: int, kind: type[Exception]) -> None:
    """A 404 of a proxy does not mean that the id is unknown: messages would be lost. Redirects are not followed."""
    with pytest.raises(kind, match="does not respond"):
        Registry(RegistryAddress(url=odd_server)).schema(code)
    assert len(OddResponses.requests) == 1


def test_passwords_are_references_and_are_never_printed(
    odd_server: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "hunter2")
    address = RegistryAddress(url=odd_server, username="u", password="env:REGISTRY_PASSWORD")
    with pytest.raises(DefiniteError, match="denied") as caught:
        Registry(address).schema(401)
    sent = "Basic " + base64.b64encode(b"u:hunter2").decode()
    assert OddResponses.requests == [("/schemas/ids/401", sent)]
    token = RegistryAddress(url=odd_server, token="env:REGISTRY_PASSWORD")
    with pytest.raises(DefiniteError, match="denied"):
        Registry(token).schema(403)
    assert OddResponses.requests[-1][1] == "Bearer hunter2"
    output = str(caught.value) + caplog.text + address.model_dump_json() + repr(address)
    assert "hunter2" not in output
    assert sent not in output


@pytest.mark.parametrize(
    "options",
    [
        {"url": "registry:8081"},
        {"url": "file:///etc/passwd"},
        {"url": "http://u:p@host"},
        {"url": "http://host", "password": "clear"},
        {"url": "http://host", "token": "clear"},
    ],
)
def test_invalid_addresses_and_plaintext_secrets_are_rejected(options: dict[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        RegistryAddress(**options)
    assert caught.value.hint
    assert "clear" not in caught.value.message.replace("in clear", "")


def test_damaged_cache_is_read_again_from_the_registry(
    registry: SharedRegistry, address: RegistryAddress, tmp_path: Path
) -> None:
    identity = registry.register(unique("cache"), json.dumps(FIRST))
    Registry(address, tmp_path).schema(identity)
    [stored] = tmp_path.rglob("*.json")
    stored.write_text("{")
    found = Registry(address, tmp_path).schema(identity)
    assert found is not None
    assert json.loads(found.text)["name"] == "shop.Order"

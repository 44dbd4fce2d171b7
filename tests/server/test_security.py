"""Requests that a server must refuse: foreign pages and names, wrong tokens, malformed and oversized requests."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from tests.server.clients import BEARER, SECRET, TOKEN, exchanged, no_spark, over_tcp, over_unix, status_of

from penstock.engine.status_document import HomeStatus, SourceStatus, TableStatus
from penstock.errors import DefiniteError, TransientError, UsageError
from penstock.home import Home
from penstock.server import app
from penstock.server.address import Address
from penstock.server.context import ServerContext
from penstock.server.security import BODY_BYTES
from penstock.server.serving import serve

JSON = {"content-type": "application/json"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
PAGE = {"accept": "text/html,application/xhtml+xml"}


# -- headers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/healthz", {}, 200),
        ("HEAD", "/api/status", {}, 200),
        ("HEAD", "/api/events", {}, 200),
        ("GET", "/metrics", {}, 200),
        ("GET", "/no/such/path", {}, 404),
        ("GET", "/api/status", {"host": "evil.example"}, 421),
        ("GET", "/api/status", {"origin": "https://evil.example"}, 403),
        ("POST", "/api/status", JSON, 405),
        ("OPTIONS", "/api/status", {}, 405),
        ("POST", "/api/status", {}, 415),
    ],
)
def test_every_response_has_safe_headers(
    shared_server: Address, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    with over_tcp(shared_server) as client:
        answer = client.request(method, path, headers=headers)
    assert answer.status_code == status
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy, "no inline scripts"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    assert "server" not in answer.headers, "no banner"
    assert not [name for name in answer.headers if name.startswith("access-control-")], "no CORS"


# -- other sites ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:7878",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "127.0.0.1@evil.example",
        "evil.example#127.0.0.1",
        "192.168.0.1",
        "0.0.0.0",
        "[::2]",
        "[::1",
        "127.0.0.1:port",
        "",
    ],
)
def test_foreign_host_is_refused(shared_server: Address, host: str) -> None:
    """A page of evil.example whose name resolves to 127.0.0.1 sends its own name."""
    answer = exchanged(shared_server, f"GET /api/status HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    assert status_of(answer) == 421
    assert b"sources" not in answer


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:7878", "127.0.0.1", "127.0.0.1:1", "[::1]:7878"])
def test_loopback_names_are_accepted_with_any_port(shared_server: Address, host: str) -> None:
    """A tunnel of ssh has another port."""
    with over_tcp(shared_server) as client:
        assert client.get("/api/status", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "http://127.0.0.1:port"},
        {"origin": "file://127.0.0.1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate"},
    ],
    ids=str,
)
def test_requests_of_other_sites_are_refused(
    shared_server: Address, token_server: Address, method: str, headers: dict[str, str]
) -> None:
    for server in (shared_server, token_server):
        with over_tcp(server) as client:
            answer = client.request(method, "/api/status", headers={**headers, **JSON, **BEARER})
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "forbidden"


def test_own_pages_and_links_from_elsewhere_are_accepted(shared_server: Address, token_server: Address) -> None:
    own = {"origin": shared_server.url, "sec-fetch-site": "same-origin"}
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    with over_tcp(shared_server) as client:
        assert client.get("/api/status", headers=own).status_code == 200
        assert client.get("/healthz", headers=link).status_code == 200
        assert client.get("/api/status", headers={"sec-fetch-site": "none"}).status_code == 200
    proxied = {"host": "penstock.example", "origin": "https://penstock.example", **BEARER}
    with over_tcp(token_server) as client:
        assert client.get("/api/status", headers=proxied).status_code == 200
        assert client.get("/api/status", headers={**proxied, "host": "localhost:7878"}).status_code == 403


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_state_changing_request_must_be_json(shared_server: Address, content_type: str) -> None:
    """A form of another site can send these types without asking first."""
    with over_tcp(shared_server) as client:
        answer = client.post("/api/sql", content=b'{"sql": "SELECT 1"}', headers={"content-type": content_type})
    assert answer.status_code == 415


# -- token ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer"},
        {"authorization": f"Bearer {SECRET[:-1]}"},
        {"authorization": f"Bearer {SECRET}x"},
        {"authorization": f"Bearer {SECRET.upper()}"},
        {"authorization": f"Basic {SECRET}"},
        {"authorization": SECRET},
        {"authorization": b"Bearer \xff\xfe"},
        {"cookie": f"penstock={SECRET}"},
        {"cookie": f"penstock-12345678={SECRET}"},
        {"cookie": '="; \x7f'},
        {"x-token": SECRET},
    ],
    ids=str,
)
def test_missing_or_wrong_token(token_server: Address, headers: dict[str, str]) -> None:
    with over_tcp(token_server) as client:
        for path in ("/api/status", "/api/events", "/metrics", "/no/such/path", f"/api/status?token={SECRET}"):
            answer = client.get(path, headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert "Authorization: Bearer" in answer.json()["error"]["hint"]


def test_right_token(token_server: Address) -> None:
    with over_tcp(token_server) as client:
        for scheme in ("Bearer", "bearer"):
            answer = client.get("/api/status", headers={"authorization": f"{scheme} {SECRET}"})
            assert answer.status_code == 200


def test_health_checks_need_no_token_and_tell_no_details(token_server: Address) -> None:
    with over_tcp(token_server) as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        without, with_token = client.get("/readyz"), client.get("/readyz", headers=BEARER)
    assert (without.status_code, without.json()) == (503, {"status": "not ready"})
    assert with_token.status_code == 503
    assert "Spark is starting" in with_token.json()["reasons"]


def test_unix_socket_needs_no_token(token_server: Address) -> None:
    with over_unix(token_server) as client:
        assert client.get("/api/status").status_code == 200
        assert "reasons" in client.get("/readyz").json()


# -- login ------------------------------------------------------------------------------------------------------------


def log_in(client: httpx.Client, token: str, **headers: str) -> httpx.Response:
    return client.post("/login", data={"token": token}, headers=headers)


def test_browser_is_asked_for_the_token_once(token_server: Address) -> None:
    with over_tcp(token_server) as client:
        asked = client.get("/", headers=PAGE)
        assert (asked.status_code, asked.headers["location"]) == (303, "/login")
        form = client.get("/login", headers=PAGE)
        assert form.status_code == 200 and 'name="token"' in form.text
        answer = log_in(client, f" {SECRET} ", origin=token_server.url)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Secure" not in cookie
        assert SECRET not in cookie, "the browser does not keep the token itself"
        assert client.get("/api/status").status_code == 200
        assert client.get("/login", headers=PAGE).headers["location"] == "/"
        client.post("/logout", headers=FORM)
        assert client.get("/api/status").status_code == 401


def test_cookie_is_secure_behind_tls(token_server: Address) -> None:
    with over_tcp(token_server) as client:
        answer = log_in(client, SECRET, host="penstock.example", origin="https://penstock.example")
        assert answer.status_code == 303
        assert "Secure" in answer.headers["set-cookie"]


@pytest.mark.parametrize("token", ["", "wrong", SECRET[:-1], "<script>alert(1)</script>", "\x00", "é"])
def test_wrong_token_in_the_form(token_server: Address, token: str) -> None:
    with over_tcp(token_server) as client:
        answer = log_in(client, token)
    assert answer.status_code == 401
    assert "This is not the token" in answer.text
    assert "set-cookie" not in answer.headers
    assert "<script" not in answer.text


def test_login_of_another_site_is_refused(token_server: Address) -> None:
    with over_tcp(token_server) as client:
        assert log_in(client, SECRET, origin="https://evil.example").status_code == 403


def test_style_of_the_login_page_is_allowed_by_its_policy(token_server: Address) -> None:
    with over_tcp(token_server) as client:
        page = client.get("/login", headers=PAGE)
    (style,) = re.findall(r"<style>(.*?)</style>", page.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in page.headers["content-security-policy"]


def test_login_without_a_token_leads_to_the_page(shared_server: Address) -> None:
    with over_tcp(shared_server) as client:
        for answer in (client.get("/login"), log_in(client, "anything")):
            assert (answer.status_code, answer.headers["location"]) == (303, "/")


# -- malformed and oversized requests ---------------------------------------------------------------------------------

HEAD = b"Host: 127.0.0.1\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HEAD + HEAD + b"\r\n",
        b"GET / HTTP/1.1\r\n" + HEAD + b"no colon\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HEAD + b"a: \x00\r\n\r\n",
        b"POST /login HTTP/1.1\r\n" + HEAD + b"Content-Length: -1\r\n\r\n",
        b"POST /login HTTP/1.1\r\n" + HEAD + b"Content-Length: 1, 2\r\n\r\n",
        b"POST /login HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: gzip\r\n\r\n",
        b"G\xc3\x89T / HTTP/1.1\r\n" + HEAD + b"\r\n",
        b"GET / HTTP/1.1\r\n" + HEAD + b"a: " + b"x" * (1 << 17) + b"\r\n\r\n",
        b"GET /" + b"x" * (1 << 17) + b" HTTP/1.1\r\n" + HEAD + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
    ],
)
def test_malformed_request_is_refused_and_the_server_goes_on(shared_server: Address, request_bytes: bytes) -> None:
    answer = exchanged(shared_server, request_bytes + b"\r\n\r\n")
    assert answer == b"" or status_of(answer) in (400, 501)
    assert b"Traceback" not in answer and b"server:" not in answer.lower()
    with over_tcp(shared_server) as client:
        assert client.get("/healthz").status_code == 200


def test_oversized_body_is_refused(shared_server: Address) -> None:
    announced = b"POST /api/sql HTTP/1.1\r\n" + HEAD + b"Content-Type: application/json\r\n"
    answer = exchanged(shared_server, announced + b"Content-Length: %d\r\n\r\n" % (BODY_BYTES + 1))
    assert status_of(answer) == 413
    assert b"longer than 1 MB" in answer


def test_oversized_body_without_a_length_is_refused(token_server: Address) -> None:
    def chunks() -> list[bytes]:
        return [b"token=", *[b"x" * (BODY_BYTES // 8)] * 9]

    with over_tcp(token_server) as client:
        answer = client.post("/login", content=iter(chunks()), headers=FORM)
    assert answer.status_code == 413
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_body_up_to_the_limit_is_accepted(token_server: Address) -> None:
    with over_tcp(token_server) as client:
        answer = client.post("/login", content=b"token=" + b"x" * (BODY_BYTES - 6), headers=FORM)
    assert answer.status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "/../../../../etc/passwd",
        "/..%2f..%2f..%2fetc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/static/../../../../../../etc/passwd",
        "/static/%2e%2e%2f%2e%2e%2fcontext.py",
        "/static//etc/passwd",
        "/page/../../../../../../../etc/passwd",
        "/page/%2e%2e%2f%2e%2e%2f%2e%2e%2f%2e%2e%2fetc/passwd",
        "/page/..%5c..%5ccontext.py",
        "/page//etc/passwd",
        "//etc/passwd",
        "/etc/passwd%00.css",
        "/\\..\\..\\etc\\passwd",
        "/%c0%ae%c0%ae/etc/passwd",
        "/.penstock/penstock.db",
        "/run/server.json",
    ],
)
def test_path_traversal(shared_server: Address, path: str) -> None:
    sent = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
    answer = exchanged(shared_server, sent)
    assert status_of(answer) in (400, 404)
    assert b"root:" not in answer
    assert b"passwd" not in answer, "the path is not repeated"


# -- errors -----------------------------------------------------------------------------------------------------------

SERVED: dict[str, Exception] = {
    "unexpected": RuntimeError("row value 4711"),
    "usage": UsageError("invalid statement", "Write another one."),
    "transient": TransientError("Spark is restarting", "Try again."),
    "definite": DefiniteError("the log is corrupt", "Restore it."),
}


def failing_routes(context: ServerContext) -> list[BaseRoute]:
    async def fail(request: Request) -> Response:
        raise SERVED[request.path_params["name"]]

    async def cut(request: Request) -> Response:
        async def stream() -> AsyncIterator[bytes]:
            yield b"beginning"
            raise RuntimeError("row value 4711")

        return StreamingResponse(stream())

    return [Route("/fail/{name}", fail), Route("/cut", cut)]


def test_errors_have_a_message_a_hint_and_a_code(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app, "ROUTES", (*app.ROUTES, failing_routes))
    with serve(home, no_spark, "127.0.0.1:0") as serving, over_tcp(serving.address) as client:
        answers = {name: client.get(f"/fail/{name}") for name in SERVED}
        codes = {name: (answer.status_code, answer.json()["error"]["code"]) for name, answer in answers.items()}
        assert codes == {
            "unexpected": (500, "InternalError"),
            "usage": (400, "UsageError"),
            "transient": (503, "TransientError"),
            "definite": (500, "DefiniteError"),
        }
        assert answers["usage"].json()["error"]["hint"] == "Write another one."
        text = answers["unexpected"].text
        assert "unexpected RuntimeError" in text
        assert "4711" not in text and "Traceback" not in text
        assert answers["unexpected"].headers["x-content-type-options"] == "nosniff"
        with pytest.raises(httpx.RemoteProtocolError):
            client.get("/cut")
        assert client.get("/healthz").status_code == 200
    assert "unexpected RuntimeError" in caplog.text
    assert "cut short: RuntimeError" in caplog.text
    assert "4711" not in caplog.text


# -- names ------------------------------------------------------------------------------------------------------------

SCRIPT = '</script><script>alert("x")</script>'


def test_names_with_scripts_stay_data(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    table = TableStatus(f"shop.{SCRIPT}", f'public."{SCRIPT}\n"', "failed", "0/10", 7, SCRIPT, SCRIPT)
    source = SourceStatus(
        *("shop", "POSTGRES", SCRIPT, "ready", "0/1", "0/2", None, None, None, SCRIPT, SCRIPT, None), [table], []
    )
    monkeypatch.setattr(home, "status", lambda watches: HomeStatus(1, str(home.path), None, [source]))
    with serve(home, no_spark, "127.0.0.1:0") as serving, over_tcp(serving.address) as client:
        status, metrics = client.get("/api/status"), client.get("/metrics")
        assert status.headers["content-type"] == "application/json"
        assert status.json()["sources"][0]["tables"][0]["name"] == f"shop.{SCRIPT}"
        assert metrics.headers["content-type"].startswith("text/plain")
        assert r'table="public.\"</script><script>alert(\"x\")</script>\n\""' in metrics.text
        with client.stream("GET", "/api/events") as events:
            assert events.headers["content-type"].startswith("text/event-stream")
            data = next(line for line in events.iter_lines() if SCRIPT.split('"')[0] in line and "tables" in line)
            assert data.startswith("data: "), "one line, whatever the names contain"


def test_the_token_is_never_printed(home: Home, capfd: pytest.CaptureFixture[str]) -> None:
    assert SECRET not in repr(TOKEN)
    with serve(home, no_spark, "127.0.0.1:0", TOKEN) as serving, over_tcp(serving.address) as client:
        client.get("/api/status", headers=BEARER)
        client.get(f"/nothing?token={SECRET}")
        assert SECRET not in (home.path / "run" / "server.json").read_text()
        assert SECRET not in serving.address.url and urlsplit(serving.address.url).query == ""
    printed = capfd.readouterr()
    assert SECRET not in printed.out + printed.err

"""The files in ``deploy/`` are valid, agree with each other and with the command line, and contain no secret.

The deep tier checks them with other projects' tools, which it installs from a lock file: hadolint (Dockerfile), the
JSON schema of the compose specification, the schemas of Kubernetes, and, if this machine has systemd, systemd-analyze.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from psycopg import sql
from tests.cli.commands import penstock
from tests.conftest import Database
from tests.deploy.chroot_image import instructions
from tests.test_docs import unknown_words

from penstock.executor import described_source, parsed
from penstock.sql.script import split_statements
from penstock.sql.statements import CreateSource

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
LOCK = Path(__file__).with_name("checkers.lock")
MANIFESTS = sorted(path for path in (DEPLOY / "kubernetes").glob("*.yaml"))
UNKNOWN_TO_KUBERNETES = {"Kustomization", "ServiceMonitor"}


def dockerfile() -> dict[str, str]:
    """Return the last of each instruction of the Dockerfile."""
    return dict(instructions((DEPLOY / "Dockerfile").read_text(encoding="utf-8")))


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def container() -> dict[str, Any]:
    (found,) = read_yaml(DEPLOY / "kubernetes" / "statefulset.yaml")["spec"]["template"]["spec"]["containers"]
    return dict(found)


def unit() -> dict[str, list[str]]:
    """Return the settings of the systemd unit."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "penstock.service").read_text(encoding="utf-8").splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def commands() -> dict[str, list[str]]:
    (start,) = unit()["ExecStart"]
    return {
        "image": json.loads(dockerfile()["CMD"]),
        "compose": read_yaml(DEPLOY / "compose.yaml")["services"]["penstock"]["command"],
        "systemd": shlex.split(start)[1:],
        "kubernetes": container()["args"],
    }


def statements(path: Path) -> Iterator[CreateSource]:
    for piece in split_statements(path.read_text(encoding="utf-8")):
        statement = parsed(piece.text, piece.begins)
        assert isinstance(statement, CreateSource)
        yield statement


# -- agreement ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("where", "words"), commands().items(), ids=commands())
def test_commands_are_valid(where: str, words: list[str]) -> None:
    assert unknown_words(words) == []
    address = words[words.index("--listen") + 1]
    assert address.endswith(f":{dockerfile()['EXPOSE']}")
    assert address.startswith("127.0.0.1:") or "--token-file" in words, "other machines need a token"


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("*.sql")), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_statements_refer_to_passwords(path: Path) -> None:
    for statement in statements(path):
        described_source(statement)
        assert not statement.secrets
        assert "PASSWORD 'file:/run/secrets/" in path.read_text(encoding="utf-8")


def test_secrets_are_mounted_where_commands_and_statements_look_for_them() -> None:
    compose = read_yaml(DEPLOY / "compose.yaml")
    mounted = {f"/run/secrets/{name}" for name in compose["services"]["penstock"]["secrets"]}
    used = [commands()["compose"], commands()["image"], [(DEPLOY / "penstock.sql").read_text()]]
    assert set(re.findall(r"/run/secrets/\w+", str(used))) == mounted
    (folder,) = [each["mountPath"] for each in container()["volumeMounts"] if each["name"] == "secrets"]
    keys = read_yaml(DEPLOY / "kubernetes" / "secret.example.yaml")["stringData"]
    manifests = [container()["args"], (DEPLOY / "kubernetes" / "penstock.sql").read_text()]
    assert set(re.findall(r"/run/secrets/penstock/\w+", str(manifests))) == {f"{folder}/{key}" for key in keys}


def test_user_volume_and_stop_time_are_those_of_the_image() -> None:
    pod = read_yaml(DEPLOY / "kubernetes" / "statefulset.yaml")["spec"]["template"]["spec"]
    user, _, group = dockerfile()["USER"].partition(":")
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["fsGroup"]) == (int(user), int(group))
    compose = read_yaml(DEPLOY / "compose.yaml")["services"]["penstock"]
    assert f"home:{dockerfile()['VOLUME']}" in compose["volumes"]
    assert dockerfile()["VOLUME"] in [each["mountPath"] for each in container()["volumeMounts"]]
    seconds = {pod["terminationGracePeriodSeconds"], int(unit()["TimeoutStopSec"][0])}
    assert (seconds, compose["stop_grace_period"]) == ({120}, "2m")


def test_nothing_runs_with_more_privileges_than_needed() -> None:
    context = container()["securityContext"]
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    compose = read_yaml(DEPLOY / "compose.yaml")["services"]
    assert compose["penstock"]["read_only"]
    assert compose["penstock"]["cap_drop"] == ["ALL"]
    ports = [port for service in compose.values() for port in service["ports"]]
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_locked_packages_are_those_of_the_tests_without_the_development_ones() -> None:
    def pinned(path: Path) -> dict[str, str]:
        return dict(re.findall(r"^([\w.-]+)==([^ ;\\]+)", path.read_text(encoding="utf-8"), re.MULTILINE))

    image, tests = pinned(DEPLOY / "requirements.lock"), pinned(ROOT / "requirements.lock")
    assert {name: version for name, version in image.items() if tests[name] != version} == {}
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    needed, _, rest = project.partition("\ndependencies = [")[2].partition("\n]")
    assert set(re.findall(r'"([\w-]+)', needed)) <= set(image)
    assert not {"pytest", "playwright", "mypy"} & set(image)
    assert "pytest" in rest


def test_the_role_of_the_compose_example_can_capture(database: Database) -> None:
    """The script, with the roles and the database of the test instead of its own."""
    role, owner = f"{database.name}_penstock", f"{database.name}_owner"
    script = (DEPLOY / "create-role.sh").read_text(encoding="utf-8")
    text = script.partition("<<'SQL'\n")[2].partition("SQL\n")[0]
    for old, new in (("shop_owner", owner), ("ROLE penstock", f"ROLE {role}"), ("TO penstock", f"TO {role}")):
        text = text.replace(old, new)
    text = text.replace("DATABASE shop", f"DATABASE {database.name}").replace(":'password'", "'correct horse'")
    try:
        database.execute(text)
        done = penstock("check", database.url.replace("postgres@", f"{role}@"), env={"PGPASSWORD": "correct horse"})
        assert done.code == 0, done.out + done.err
        assert "1 of 1 tables can be captured" in done.out
    finally:
        with database.connect() as connection:
            _drop_roles(connection, role, owner)


def _drop_roles(connection: psycopg.Connection[Any], *names: str) -> None:
    for name in names:
        if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [name]).fetchone() is not None:
            connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))


# -- tools of other projects -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the tools."""
    folder = tmp_path_factory.mktemp("checkers")
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--require-hashes", "--target", str(folder)]
    subprocess.run([*install, "-r", str(LOCK)], check=True)
    return folder


def checked(checkers: Path, program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run an installed tool."""
    environment = {**os.environ, "PYTHONPATH": str(checkers)}
    command = [checkers / "bin" / program, *arguments]
    if program != "hadolint":
        command.insert(0, Path(sys.executable))
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.deep
def test_hadolint_accepts_the_dockerfile(checkers: Path, tmp_path: Path) -> None:
    done = checked(checkers, "hadolint", DEPLOY / "Dockerfile")
    assert (done.returncode, done.stdout) == (0, "")
    bad = tmp_path / "Dockerfile"
    bad.write_text((DEPLOY / "Dockerfile").read_text().replace("--no-install-recommends", ""))
    assert "DL3015" in checked(checkers, "hadolint", bad).stdout, "the check can fail"


@pytest.mark.deep
def test_compose_file_matches_the_specification(checkers: Path, tmp_path: Path) -> None:
    schema = ("--builtin-schema", "vendor.compose-spec")
    done = checked(checkers, "check-jsonschema", *schema, DEPLOY / "compose.yaml")
    assert done.returncode == 0, done.stdout
    bad = tmp_path / "compose.yaml"
    bad.write_text((DEPLOY / "compose.yaml").read_text().replace("read_only: true", "read_only: [yes]"))
    assert checked(checkers, "check-jsonschema", *schema, bad).returncode == 1, "the check can fail"


@pytest.mark.deep
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_kubernetes_accepts_the_manifests(checkers: Path, path: Path) -> None:
    done = checked(checkers, "kubernetes-validate", "--strict", path)
    assert done.returncode == 0, done.stdout + done.stderr
    known = read_yaml(path)["kind"] not in UNKNOWN_TO_KUBERNETES
    assert ("passed for resource" in done.stdout + done.stderr) == known


@pytest.mark.deep
def test_kubernetes_rejects_an_unknown_field(checkers: Path, tmp_path: Path) -> None:
    bad = tmp_path / "statefulset.yaml"
    bad.write_text((DEPLOY / "kubernetes" / "statefulset.yaml").read_text().replace("runAsNonRoot", "runAsNonroot"))
    assert checked(checkers, "kubernetes-validate", "--strict", bad).returncode != 0


@pytest.mark.deep
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kustomize is a part of kubectl, which is not installed")
def test_kustomize_combines_the_manifests(checkers: Path, tmp_path: Path) -> None:
    command = ["kubectl", "kustomize", str(DEPLOY / "kubernetes")]
    (tmp_path / "all.yaml").write_text(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    documents = list(yaml.safe_load_all((tmp_path / "all.yaml").read_text()))
    assert sorted(each["kind"] for each in documents) == ["ConfigMap", "NetworkPolicy", "Service", "StatefulSet"]
    assert {each["metadata"]["namespace"] for each in documents} == {"penstock"}
    done = checked(checkers, "kubernetes-validate", "--strict", tmp_path / "all.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.deep
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "penstock.service").read_text(encoding="utf-8")
    path = tmp_path / "penstock.service"

    def verified(changed: str) -> subprocess.CompletedProcess[str]:
        path.write_text(changed.replace("/opt/penstock/bin/penstock", sys.executable))
        return subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, check=False)

    bad = verified(text.replace("ProtectSystem=strict", "ProtectSystem=stricter"))
    assert "stricter" in bad.stderr, "the check can fail"
    done = verified(text)
    assert (done.returncode, done.stderr) == (0, "")
    security = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(path)]  # 2.0, of at most 10
    assert subprocess.run(security, capture_output=True, check=False).returncode == 0

"""The image: its build steps on a clean Debian, then the demo in it, as its user, read-only and without a network."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.deploy.chroot_image import ChrootImage, instructions, missing_tools

ROOT = Path(__file__).parent.parent.parent
DOCKERFILE = ROOT / "deploy" / "Dockerfile"


def test_only_the_last_stage_has_a_user_a_health_check_and_an_init() -> None:
    found = list(instructions(DOCKERFILE.read_text(encoding="utf-8")))
    last = dict(found[max(number for number, (word, _) in enumerate(found) if word == "FROM") :])
    assert last["USER"] == "10001:10001"
    assert "/healthz" in last["HEALTHCHECK"]
    assert last["ENTRYPOINT"] == '["tini", "--", "penstock"]'


@pytest.mark.deep
@pytest.mark.image
@pytest.mark.timeout(1500)
@pytest.mark.skipif(bool(missing_tools()), reason=missing_tools())
def test_the_image_runs_read_only_without_network_as_its_user(tmp_path: Path) -> None:
    built = ChrootImage(tmp_path / "image", ROOT, DOCKERFILE)
    prepared = kernels(built.image.files / "opt/penstock/cache/kernels")
    assert len(prepared) > 50
    done = built.start("demo", "--seconds", "5", home=tmp_path / "home", scratch=tmp_path / "scratch")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count(" equal\n") == 6
    assert "download" not in done.stdout + done.stderr
    assert kernels(tmp_path / "scratch") == prepared, "no kernel was compiled"


def kernels(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.nbc"))

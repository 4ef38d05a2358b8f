"""Checks a wheel and an sdist: ``python tools/check_dist.py dist``.

The wheel has to have all files of the packages, the licence and the metadata, and to work in an
environment of its own. The sdist has to have what is needed to build and test.
"""

from __future__ import annotations

import email
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("src/gfxgraph", "src/hipgraph_bridge")
NEEDED = ("LICENSE", "Makefile", "README.md", "mkdocs.yml", "pyproject.toml", "tests/conftest.py")


def main() -> None:
    """The command."""
    folder = Path(sys.argv[1])
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    for complaint in (*of_wheel(wheel), *of_sdist(sdist), *of_installed(wheel)):
        sys.exit(f"{folder}: {complaint}")
    print(f"{wheel.name} and {sdist.name} are complete.")


def of_wheel(wheel: Path) -> list[str]:
    """What is wrong with the files and the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        about = email.message_from_bytes(archive.read(metadata))
    expected = {
        str(path.relative_to(ROOT / "src"))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    wrong = [f"the wheel lacks {name}" for name in sorted(expected - names)]
    others = {name for name in names - expected if ".dist-info/" not in name}
    wrong += [f"the wheel has {name}" for name in sorted(others)]
    wrong += [
        f"no {key} in the metadata" for key in ("Summary", "License-Expression") if not about[key]
    ]
    if "# gfxgraph" not in str(about.get_payload()):
        wrong.append("the metadata lacks the README")
    return wrong


def of_sdist(sdist: Path) -> list[str]:
    """What an sdist lacks."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    return [f"the sdist lacks {name}" for name in NEEDED if name not in names]


def of_installed(wheel: Path) -> list[str]:
    """What is wrong with a wheel in an environment that has only its dependencies from here."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True, system_site_packages=False)
        python = Path(folder) / "bin" / "python"
        install = (python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel)
        subprocess.run(install, check=True)
        code = "import importlib.metadata as m; print(m.version('gfxgraph'))"
        found = subprocess.run((python, "-c", code), capture_output=True, text=True, check=True)
        version = found.stdout.strip()
    return [] if version == wheel.name.split("-")[1] else [f"the wheel installs version {version}"]


if __name__ == "__main__":
    main()

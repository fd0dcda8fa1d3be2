"""Wheels made on the spot, and a configuration of uv in which these are all that there is."""

from __future__ import annotations

import base64
import hashlib
import sysconfig
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

INSTALLED_HERE = ("msgspec", "numpy", "gymnasium", "pettingzoo")


def toy_wheel(
    folder: Path, name: str, version: str, files: Mapping[str, str], requires: Sequence[str] = ()
) -> Path:
    """Write a wheel of pure Python with these files."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    contents = {
        **files,
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {one}\n" for one in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{path},sha256={_digest(text)},{len(text.encode())}" for path, text in contents.items()]
    contents[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in contents.items():
            archive.writestr(name, text)
    return path


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def package_folder(folder: Path, name: str, files: Mapping[str, str], requires: Sequence[str] = ()) -> Path:
    """Write the source of a package that builds without any other package."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = ", ".join(f'"{one}"' for one in requires)
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "{name}"\nversion = "1.0"\ndependencies = [{wanted}]\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (folder / "backend.py").write_text(_BACKEND)
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


_BACKEND = """
import pathlib, tomllib, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    info = f"{name}-{version}.dist-info"
    requires = "".join(f"Requires-Dist: {one}\\n" for one in project["dependencies"])
    file = f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder) / file, "w") as archive:
        for path in sorted(pathlib.Path(".").glob("**/*.py")):
            if path.name != "backend.py" and ".venv" not in path.parts:
                archive.write(path, str(path))
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n{requires}")
        wheel = "Wheel-Version: 1.0\\nGenerator: tests\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        archive.writestr(f"{info}/WHEEL", wheel)
        archive.writestr(f"{info}/RECORD", "")
    return file
"""


def packages_of_this_python(folder: Path) -> None:
    """Write wheels in the names of what is installed here; they let an environment import from this Python's."""
    path = sysconfig.get_path("purelib") + "\n"
    for name in INSTALLED_HERE:
        toy_wheel(folder, name, "99.0", {f"{name}_of_this_python.pth": path})


def only_wheels_in(folder: Path) -> dict[str, str]:
    """Return variables with which uv finds the wheels in ``folder`` and nothing else, whatever the user has set."""
    settings = folder / "uv.toml"
    settings.write_text(f'no-index = true\nfind-links = ["{folder}"]\npython-downloads = "never"\n')
    return {"UV_CONFIG_FILE": str(settings), "UV_OFFLINE": "1"}

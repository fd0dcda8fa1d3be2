"""Interpreters that have a wheel of a test: a virtual environment over the packages of this one."""

from __future__ import annotations

import io
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path


def layered_interpreter(folder: Path, wheels: Mapping[str, bytes]) -> Path:
    """Make a virtual environment with these wheels; its other packages are those of this interpreter."""
    made = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True, timeout=60)
    (site,) = made.glob("lib/python3*/site-packages")
    for data in wheels.values():
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            file.extractall(site)
    (site / "below.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return made / "bin" / "python"

"""Builds one small image for all toy instances, in which the official evaluation scripts run unchanged.

It has a tag for each instance. As in the official images, the repository is in ``/testbed``. Instead of conda it
has an ``activate`` script and an environment ``testbed`` with the Python of the base image.
"""

from __future__ import annotations

import hashlib
import io
import shlex
import tarfile
from typing import Any

from envweave_gym.containers.engine import engine_errors
from envweave_gym.data.toy_files import FILES
from envweave_gym.data.toy_issues import ISSUES
from envweave_gym.data.toy_repo import COMMIT_ENVIRONMENT, MESSAGE, toy_instances
from envweave_gym.os_support.file_lock import file_lock, user_folder

BASE = "python:3.11-slim"
_DIGEST = "envweave.toy"
_ACTIVATE = """\
conda() { PATH=/opt/miniconda3/envs/$2/bin:$PATH; }
"""
_DOCKERFILE = """\
FROM {base}
RUN apt-get update -q \\
 && apt-get install -y -q --no-install-recommends git patch \\
 && rm -rf /var/lib/apt/lists/*
RUN mkdir -p /opt/miniconda3/envs/testbed/bin \\
 && ln -s "$(command -v python3)" /opt/miniconda3/envs/testbed/bin/python
COPY activate /opt/miniconda3/bin/activate
COPY testbed /testbed
WORKDIR /testbed
RUN git init -q && git add . && {variables} git commit -q -m {message} \\
 && git -c user.name=SWE-bench -c user.email=swebench@localhost commit -q --allow-empty -m SWE-bench
"""


def build_toy_images(client: Any, base: str = BASE) -> tuple[str, ...]:
    """Build the image from the base image ``base`` unless it is up to date; return the names of its tags.

    ``client`` is a ``docker.DockerClient``. A file lock makes other processes wait for the build.
    """
    names = tuple(one.image for split in ISSUES for one in toy_instances(split))
    context = _context(base)
    digest = hashlib.sha256(context).hexdigest()
    lock = file_lock(user_folder() / "envweave-toy-images.lock")
    with lock, engine_errors("the toy images cannot be built"):
        if all(_digest_of(client, name) == digest for name in names):
            return names
        image, _ = client.images.build(
            fileobj=io.BytesIO(context),
            custom_context=True,
            network_mode="host",  # apt-get needs a mirror, which bridged networks of some machines cannot reach
            labels={_DIGEST: digest},
            rm=True,
            forcerm=True,
        )
        for name in names:
            image.tag(name)
    return names


def _digest_of(client: Any, image: str) -> str | None:
    from docker.errors import ImageNotFound

    try:
        return client.images.get(image).labels.get(_DIGEST)
    except ImageNotFound:
        return None


def _context(base: str) -> bytes:
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in COMMIT_ENVIRONMENT.items())
    dockerfile = _DOCKERFILE.format(base=base, variables=variables, message=shlex.quote(MESSAGE.strip()))
    files = {"Dockerfile": dockerfile, "activate": _ACTIVATE}
    files |= {f"testbed/{name}": text for name, text in FILES.items()}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text.encode()), 0o644
            archive.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()

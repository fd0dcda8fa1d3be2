"""A real cluster, started by ``.ci/cluster``, behind what tests ask of the stand-in of ``kubernetes_api.py``.

A test that needs what only a stand-in can do, like refusing a request or being slow, is skipped on it.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = "ENVWEAVE_CLUSTER"
"""The environment variable that names the folder of the cluster that runs."""
_OURS = "app.kubernetes.io/managed-by=envweave"


class RealCluster:
    """The cluster as its administrator sees it; who plays in it has no more rights than the docs ask for."""

    is_real = True
    starts_within = 20.0
    """A Pod of an image that the node has starts within so many seconds, also on a busy machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getattr__(self, name: str) -> Any:
        pytest.skip(f"{name} is for the stand-in alone; this is a real cluster")

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "_folder":
            getattr(self, name)
        object.__setattr__(self, name, value)

    def behave(self) -> None:
        """It does as it likes."""

    def close(self) -> None:
        """``.ci/cluster stop`` does."""

    def processes(self) -> list[int]:
        """Its containers are counted as Pods."""
        return []

    def kubeconfig(self, path: Path, **changes: Any) -> Path:
        """A kubeconfig of somebody with the rights of docs/kubernetes.md, changed."""
        document = yaml.safe_load((self._folder / "player.kubeconfig").read_text())
        path.write_text(json.dumps(document | changes))
        return path

    def kubectl(self, *words: str, given: str = "") -> str:
        """What the administrator's kubectl prints."""
        done = self._ran(*words, given=given)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def is_ready(self) -> bool:
        """Whether the API server has started: it already serves before that, and kubectl fails until then."""
        return self._ran("get", "--raw", "/readyz").stdout == "ok"

    def _ran(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        command = [self._folder.parent / "bin" / "kubectl", "--kubeconfig", self._folder / "admin.kubeconfig"]
        return subprocess.run([*command, *words], input=given, capture_output=True, text=True, timeout=120)

    def listed(self, resource: str, namespace: str = "default") -> list[dict[str, Any]]:
        """What is there of ours."""
        found = self.kubectl(
            "get", resource, "--namespace", namespace, "--selector", _OURS, "--output", "json"
        )
        return json.loads(found)["items"]

    def names(self, resource: str, namespace: str = "default") -> set[str]:
        """What is there of ours, by name."""
        return {one["metadata"]["name"] for one in self.listed(resource, namespace)}

    def object(self, resource: str, name: str, namespace: str = "default") -> dict[str, Any]:
        """An object as it is now."""
        (found,) = [one for one in self.listed(resource, namespace) if one["metadata"]["name"] == name]
        return found

    def delete(self, resource: str, namespace: str, name: str) -> None:
        """Delete it, and do not wait until it is gone."""
        self.kubectl("delete", resource, name, "--namespace", namespace, "--wait=false")

    def kill(self, name: str) -> None:
        """Let the server of a Pod die."""
        docker = ["docker", "-H", f"unix://{self._folder}/docker.sock"]
        listed = [*docker, "ps", "--quiet", "--filter", f"name=k8s_server_{name}_"]
        (container,) = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split()
        subprocess.run([*docker, "kill", container], check=True, capture_output=True)


def real_cluster() -> RealCluster | None:
    """The cluster that ``ENVWEAVE_CLUSTER`` names, if it does."""
    folder = os.environ.get(FOLDER)
    return RealCluster(Path(folder)) if folder else None

"""``ContainerOptions``: resource limits of a container, and its access to networks, folders and the engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envweave_gym.containers.engine import SOCKET, engine_socket
from envweave_gym.core.config import true_or_false
from envweave_gym.core.faults import InvalidArgument, NotAvailable, shown
from envweave_gym.core.sizes import memory_of
from envweave_gym.os_support.xdg_folders import cache_home

_LEAST_CPUS = 0.01  # Docker accepts no less
NO_NETWORK = "none"
_SCRATCH = "rw,nosuid,nodev,size=256m,mode=1777"


@dataclass(frozen=True)
class ContainerOptions:
    """Resource limits of a container, and its access to networks, folders and the engine.

    By default its network reaches this machine only: servers here that listen on all addresses. With
    ``network="none"`` it has no network. It has no DNS unless ``network=True``, no capabilities, and cannot
    gain privileges. Its root is read-only, with scratch space in ``/tmp``.
    """

    memory: int | str = "2g"
    """Memory limit in bytes, or as text like ``"512m"``; a container that uses more is killed."""
    cpus: float | None = None
    """CPU limit in cores; ``None`` sets no limit."""
    pids: int = 512
    """Limit of processes and threads."""
    network: bool | str = False
    """Whether the container reaches other machines; with ``"none"`` it does not even reach this one."""
    mounts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Folders of this machine, with their paths in the container; a path that ends with ``":rw"`` is writable."""
    data: bool = False
    """Whether the container may read the data sets in the folder ``ENVWEAVE_DATA``.

    If that variable is not set, it reads the Hugging Face caches of the hub and of datasets; the access token
    beside them is not mounted.
    """
    docker_sock: bool = False
    """Whether the container may use the container engine, which is equivalent to being root on this machine."""

    def __post_init__(self) -> None:
        memory_of(self.memory)
        if self.cpus is not None and not (type(self.cpus) in (int, float) and _LEAST_CPUS <= self.cpus < 1e6):
            raise InvalidArgument(
                f"cpus={shown(self.cpus)} is no number of cores; give one from {_LEAST_CPUS}, like 1.5"
            )
        if type(self.pids) is not int or self.pids < 1:
            raise InvalidArgument(f"pids={shown(self.pids)} is no number of processes; give an int >= 1")
        if self.network != NO_NETWORK and not isinstance(self.network, bool):
            raise InvalidArgument(f"network={shown(self.network)} is not True, False or {NO_NETWORK!r}")
        for name in ("data", "docker_sock"):
            true_or_false(name, getattr(self, name))
        if not isinstance(self.mounts, Mapping):
            raise InvalidArgument(
                f"mounts={shown(self.mounts)} is not a dict of folders here to folders there"
            )
        for here, there in self.mounts.items():
            _mount(here, there)

    def arguments(self, network: str) -> dict[str, Any]:
        """Return the arguments of ``docker.containers.create``.

        ``network`` is the network to join; it is not used if the option ``network`` is ``True``.
        """
        memory = memory_of(self.memory)
        volumes = dict(_mount(here, there) for here, there in self.mounts.items())
        more: dict[str, Any] = {}
        if self.data:
            more["environment"], data_volumes = _data()
            volumes |= data_volumes
        if self.docker_sock:
            path = engine_socket()
            volumes[str(path)] = {"bind": SOCKET, "mode": "rw"}
            more["group_add"] = [str(path.stat().st_gid)]
        if self.cpus is not None:
            more["nano_cpus"] = int(self.cpus * 1e9)
        if not self.network:
            more["dns"] = ["127.0.0.1"]  # no server: otherwise the engine forwards to those of this machine
            more["dns_opt"] = ["timeout:1", "attempts:1"]
        return more | {
            "mem_limit": memory,
            "memswap_limit": memory,
            "pids_limit": self.pids,
            "network": "bridge" if self.network is True else network,
            "volumes": volumes,
            "read_only": True,
            "tmpfs": {"/tmp": _SCRATCH},
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges:true"],
        }


def _data() -> tuple[dict[str, str], dict[str, Any]]:
    """Return environment variables and volumes that make this machine's data sets readable."""
    if here := os.environ.get("ENVWEAVE_DATA"):
        return {"ENVWEAVE_DATA": "/data"}, _data_volume(here, "/data")
    home = Path(os.environ.get("HF_HOME") or cache_home() / "huggingface")
    hub = os.environ.get("HF_HUB_CACHE") or home / "hub"
    datasets = Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets")
    variables = {"HF_HUB_CACHE": "/data/hub", "HF_HUB_OFFLINE": "1"}
    volumes = _data_volume(hub, variables["HF_HUB_CACHE"])
    if datasets.is_dir():
        variables["HF_DATASETS_CACHE"] = "/data/datasets"
        volumes |= _data_volume(datasets, variables["HF_DATASETS_CACHE"])
    return variables, volumes


def _data_volume(here: str | Path, there: str) -> dict[str, Any]:
    folder = Path(here).expanduser()
    if not folder.is_dir():
        raise NotAvailable(
            f"data=True: there is no folder {shown(str(folder))}; say in ENVWEAVE_DATA where the data is"
        )
    return {str(folder.absolute()): {"bind": there, "mode": "ro"}}


def _mount(here: Any, there: Any) -> tuple[str, dict[str, str]]:
    """Validate one item of ``mounts=``, and return it as a Docker volume.

    ``here`` is a path on this machine, and ``there`` the one in the container, to which ``:ro`` may be appended.
    """
    if not isinstance(here, str) or not isinstance(there, str):
        raise InvalidArgument(f"mounts={{{shown(here)}: {shown(there)}}}: both are paths, as text")
    path, _, mode = there.partition(":")
    folder = Path(here).expanduser()
    if not folder.is_absolute() or not folder.exists():
        raise InvalidArgument(
            f"mounts={{{shown(here)}: …}}: there is no such path here; give an absolute one"
        )
    if not path.startswith("/") or mode not in ("", "ro", "rw"):
        raise InvalidArgument(
            f"mounts={{…: {shown(there)}}} is no path in a container; give '/path' or '/path:rw'"
        )
    return str(folder), {"bind": path, "mode": mode or "ro"}

"""Installs environments of the Prime Environments Hub, finds installed ones, and makes ``prime://`` names.

Installing is always explicit. Each version has a virtual environment of its own, as two hub environments may need
versions of the library that exclude each other. Making an environment sends no request to the hub.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from envweave_gym.core.faults import InvalidArgument, NotAvailable, shown
from envweave_gym.hubs.prime.dependency_pins import resolved_pins
from envweave_gym.hubs.prime.file_conflicts import check_conflicts
from envweave_gym.hubs.prime.hub_id import SCHEME, HubId, hub_id_of, normalised
from envweave_gym.hubs.prime.hub_lock import HubLock, HubPackage, lock_of, sha256_of
from envweave_gym.hubs.prime.locked_environment import LockedSpec, locked_spec
from envweave_gym.hubs.prime.prime_api import Details, PrimeApi
from envweave_gym.hubs.prime.wheel_check import CheckedWheel, check_wheel
from envweave_gym.registry.make_call import MakeCall
from envweave_gym.registry.make_registered import make_registered
from envweave_gym.suites.requirement_lists import check_python
from envweave_gym.suites.virtual_environments import acquire, hold, installed_folder, lease_of

ENV_ID, GAME_ID = "envweave/Hub-v0", "envweave/HubTeam-v0"


def make_prime(call: MakeCall) -> Any:
    """Make ``prime://owner/name[@version]``: a Gymnasium environment, or a game if it has several agents."""
    from envweave_gym.hubs.prime.hub_env import SeveralAgents

    if "hub_id" in call.kwargs:
        raise InvalidArgument(f"make({shown(call.name)}): the name is the hub_id; leave hub_id= out")
    hub_id = str(hub_id_of(call.name.partition("://")[2]))
    if call.backend in (None, "inproc"):
        find_installed(hub_id_of(hub_id))
    kwargs = {**call.kwargs, "hub_id": hub_id}
    if call.api in ("aec", "parallel") or _is_game(call, hub_id):
        return make_registered(replace(call, name=GAME_ID, api=call.api or "parallel", kwargs=kwargs))
    try:
        return make_registered(replace(call, name=ENV_ID, kwargs=dict(kwargs)))
    except SeveralAgents:
        if call.api == "gym" or call.num_envs is not None:
            raise
        return make_registered(replace(call, name=GAME_ID, kwargs=kwargs))


def _is_game(call: MakeCall, hub_id: str) -> bool:
    """Return whether the call takes a game, and the lock file lists several agents.

    ``env_args`` with ``id`` choose another environment of the library, with other agents.
    """
    env_args = call.kwargs.get("env_args")
    if call.api == "gym" or call.num_envs is not None or (isinstance(env_args, dict) and "id" in env_args):
        return False
    package = lock_of().find(hub_id_of(hub_id))
    return package is not None and len(package.agents) > 1


def install(
    text: str, *, python: str | None = None, project: bool | None = None, api: PrimeApi | None = None
) -> HubPackage:
    """Install an environment of the hub, and write it to the lock file with its agents; return the package.

    The wheel is inspected before anything of it runs. Its hash must be that of the lock file and of the hub, as far as
    they have one. If any step fails, nothing is left. ``project`` chooses the lock file in the working directory.
    """
    from envweave_gym.hubs.prime.hub_session import declared_agents

    hub_id, lock, api = hub_id_of(text), lock_of(project), api or PrimeApi()
    python = check_python(str(hub_id), python)
    details = api.details(hub_id)
    data, wheel, package = _checked_package(api, hub_id, details, lock, python)
    interpreter = _installed(data, wheel, package)
    package = msgspec.structs.replace(package, agents=declared_agents(package, interpreter))
    lock.add(package)
    return package


def _checked_package(
    api: PrimeApi, hub_id: HubId, details: Details, lock: HubLock, python: str | None
) -> tuple[bytes, CheckedWheel, HubPackage]:
    """Download and check a wheel; return its bytes, and the package with its resolved dependencies."""
    if details.url_dependencies:
        raise NotAvailable(
            f"{hub_id} needs packages from URLs, {shown(details.url_dependencies)}; they are not taken"
        )
    link = api.wheel_link(hub_id, details)
    data = api.download(link)
    sha256 = sha256_of(data)
    _check_hash(hub_id, sha256, {"index": link.sha256, "details": details.sha256})
    wheel = check_wheel(data, link.filename, hub_id, details.version, details.hint)
    known = lock.find(HubId(hub_id.owner, hub_id.name, wheel.version))
    if known is not None and known.sha256 != sha256:
        raise NotAvailable(
            f"{known.hub_id} has another wheel on the hub ({sha256[:12]}…) than the one in {lock.path} "
            f"({known.sha256[:12]}…); remove it first if you trust the new one: envweave hub remove {known.hub_id}"
        )
    if known is not None and python in (None, known.python):
        return data, wheel, known
    package = HubPackage(
        owner=details.owner.name,
        name=details.name,
        version=wheel.version,
        sha256=sha256,
        filename=link.filename,
        generation=wheel.generation,
        content_hash=details.digest,
        python=python,
        pins=resolved_pins(str(hub_id), wheel.requires, wheel.generation, python),
    )
    if same := [pin for pin in package.pins if normalised(pin.partition("==")[0]) == hub_id.distribution]:
        raise NotAvailable(f"{hub_id} requires {same[0]}, which has its own name; not installed")
    return data, wheel, package


def _check_hash(hub_id: HubId, sha256: str, expected: Mapping[str, str | None]) -> None:
    for source, other in expected.items():
        if other is not None and other.lower() != sha256:
            raise NotAvailable(
                f"{hub_id}: the wheel's SHA-256 is {sha256[:12]}…, and the hub's {source} has {other[:12]}…; "
                "not installed"
            )


def _installed(data: bytes, wheel: CheckedWheel, package: HubPackage) -> Path:
    """Return the interpreter of the package's virtual environment, which is made if there is none."""
    problem = f"the wheel {shown(package.filename)} of {package.hub_id.path}"
    with tempfile.TemporaryDirectory(prefix="envweave-hub-wheel-") as folder:
        path = Path(folder) / package.filename
        path.write_bytes(data)
        spec = _spec(
            package,
            wheel=path,
            check_site=lambda site: check_conflicts(site, wheel.files, wheel.scripts, problem),
        )
        return hold(acquire(spec, install=True))


def find_installed(hub_id: HubId) -> tuple[HubPackage, Path]:
    """Return an installed package and its interpreter, without any request; raise ``NotAvailable`` if it is missing."""
    lock = lock_of()
    package = lock.find(hub_id)
    if package is None:
        raise NotAvailable(
            f"{SCHEME}{hub_id} is not installed (it is not in {lock.path}); 'envweave hub info {hub_id}' shows it, and "
            f"'envweave hub install {hub_id}' installs it"
        )
    spec = _spec(package)
    folder = installed_folder(spec)
    if folder is None:
        raise NotAvailable(
            f"{SCHEME}{hub_id} is in {lock.path} but not on this machine; run: envweave hub install {package.hub_id}"
        )
    return package, hold(lease_of(folder, spec.what))


def _spec(package: HubPackage, **more: Any) -> LockedSpec:
    name = f"{package.hub_id.distribution}=={package.version}"
    what = f"{SCHEME}{package.hub_id}"
    return locked_spec(what, name, package.sha256, package.pins, package.python, **more)


def remove(text: str, *, project: bool | None = None) -> list[HubPackage]:
    """Remove an environment from the lock file; its virtual environment goes with the next sweep of unused ones."""
    hub_id, lock = hub_id_of(text), lock_of(project)
    removed = lock.remove(hub_id)
    if not removed:
        raise NotAvailable(
            f"{hub_id} is not installed (it is not in {lock.path}); 'envweave hub list' shows what is"
        )
    return removed

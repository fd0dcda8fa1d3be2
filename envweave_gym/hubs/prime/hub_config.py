"""Constructor arguments of the hub's environments and games."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from envweave_gym.core.arguments import check_deadline, check_int
from envweave_gym.core.config import Config, local, one_of
from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.core.secret_reference import check_reference, read_reference
from envweave_gym.core.spaces import Json
from envweave_gym.hubs.prime.hub_id import hub_id_of

_INHERITED = (
    *("PATH", "HOME", "USER", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "XDG_CACHE_HOME", "DOCKER_HOST"),
    *("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"),
)
_INHERITED_PREFIXES = ("HF_", "UV_", "OMP_", "OPENBLAS_")
_SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIAL", "AUTH")
"""Words in the names of variables that are not inherited by the prefixes."""
_LOOPBACK = "127.0.0.1,localhost"


class HubConfig(Config, frozen=True, kw_only=True):
    """The arguments of ``envweave/Hub-v0`` and ``envweave/HubTeam-v0``."""

    hub_id: Annotated[str, local("`owner/name` or `owner/name@version`; it must be installed")] = ""
    env_args: Annotated[
        dict[str, Any], local("v0: arguments of its `load_environment`; v1: its `[env]` block, as a dict")
    ] = {}
    split: Annotated[str, local('`"train"`, or `"eval"` for the evaluation data of a v0 environment')] = (
        "train"
    )
    data: Annotated[
        str | None, local("a folder with data sets, `<org>/<name>/…`, which are read in place of the hub's")
    ] = None
    variables: Annotated[
        dict[str, str], local("environment variables, each a reference: `env:NAME` or `file:PATH`")
    ] = {}
    limit: Annotated[int, local("tasks to read at most; the bound of an infinite task set")] = 10_000
    start_timeout: Annotated[float, local("seconds until the program has loaded its environment")] = 300.0
    step_timeout: Annotated[float, local("seconds until the program calls the model again, or ends")] = 600.0
    render_mode: Annotated[str | None, local('`"ansi"`, `"human"` or none')] = None

    def __post_init__(self) -> None:
        if not self.hub_id:
            raise InvalidArgument("hub_id= is missing; give 'owner/name' of an environment that is installed")
        hub_id_of(self.hub_id)
        if not isinstance(self.env_args, dict) or not Json(None).contains(self.env_args):
            raise InvalidArgument(
                f"env_args={shown(self.env_args)} is not a dict of JSON values, without NaN"
            )
        one_of("split", self.split, ("train", "eval"))
        if self.data is not None and not (
            isinstance(self.data, str | os.PathLike) and Path(self.data).is_dir()
        ):
            raise InvalidArgument(f"data={shown(self.data)} is not a folder; give one, or None")
        _check_variables(self.variables)
        check_int("limit", self.limit, "not a number of tasks", 1, 10_000_000)
        for name in ("start_timeout", "step_timeout"):
            check_deadline("the program", name, getattr(self, name))

    def environment(self) -> dict[str, str]:
        """Return the environment variables of the program: few of this process's, no secret but the given ones."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name in _INHERITED
            or (
                name.startswith(_INHERITED_PREFIXES)
                and not any(word in name.upper() for word in _SECRET_WORDS)
            )
        }
        # A proxy must not get the calls of the model.
        own = {"NO_PROXY": _LOOPBACK, "no_proxy": _LOOPBACK, "PYTHONUNBUFFERED": "1"}
        if self.data is not None:
            own |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
        return {**inherited, **own, **{name: _read(name, value) for name, value in self.variables.items()}}


def _check_variables(variables: Any) -> None:
    if not isinstance(variables, Mapping):
        raise InvalidArgument(f"variables={shown(variables)} is not a dict of references by name")
    for name, reference in variables.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise InvalidArgument(f"variables= has {shown(name)}, which is not the name of a variable")
        if not isinstance(reference, str):
            raise InvalidArgument(f"variables[{name!r}] is not a reference; give 'env:NAME' or 'file:PATH'")
        check_reference(f"variables[{name!r}]", reference)


def _read(name: str, reference: str) -> str:
    try:
        return read_reference(reference)
    except (KeyError, OSError, ValueError) as error:
        raise InvalidArgument(
            f"variables[{name!r}]: nothing to read at {reference}: {type(error).__name__}"
        ) from None

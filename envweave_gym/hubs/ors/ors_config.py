"""The constructor arguments of environments on servers of the Open Reward Standard."""

from __future__ import annotations

from typing import Annotated

from envweave_gym.core.arguments import check_deadline
from envweave_gym.core.config import Config, local
from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.core.secret_reference import check_reference


class OrsConfig(Config, frozen=True, kw_only=True):
    """The arguments of ``envweave/ORS-v0``; clients of a server of ours may give none of them."""

    url: Annotated[str, local("the server, such as `http://host:8080`")] = ""
    env: Annotated[str | None, local("one of its environments; by default its first")] = None
    split: Annotated[str | None, local("one of the environment's splits; by default its first")] = None
    token: Annotated[str | None, local("a reference to the server's key, `env:NAME` or `file:PATH`")] = None
    timeout: Annotated[float, local("seconds that the server may take for one reply")] = 600.0
    render_mode: Annotated[str | None, local('`"ansi"` or none')] = None

    def __post_init__(self) -> None:
        for name in ("env", "split"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise InvalidArgument(f"{name}={shown(value)} is neither a name nor None")
        check_reference("token", self.token)
        check_deadline("envweave/ORS-v0", "timeout", self.timeout)

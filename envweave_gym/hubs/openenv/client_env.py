"""``OpenEnvClientEnv``: the environment of an OpenEnv server as a ``gymnasium.Env``."""

from __future__ import annotations

import copy
import json
import re
import time
import weakref
from _thread import start_new_thread
from contextlib import suppress
from typing import Any

import gymnasium as gym

from envweave_gym.core.arguments import check_deadline
from envweave_gym.core.config import true_or_false
from envweave_gym.core.faults import EnvweaveError, InvalidArgument, NotAvailable, SessionLost, shown
from envweave_gym.core.reply_parsing import require_text
from envweave_gym.core.secret_reference import Secret, check_encrypted, check_reference, read_reference
from envweave_gym.core.seeding import Seeds
from envweave_gym.hubs.openenv import message_dialects as messages
from envweave_gym.hubs.openenv.environment_names import ID, OpenEnvName, Server
from envweave_gym.hubs.openenv.info_metadata import MetadataKinds, kinds_of
from envweave_gym.hubs.openenv.json_codecs import BadSchema
from envweave_gym.hubs.openenv.json_schema_space import (
    action_codec,
    any_object,
    known_members,
    observation_codec,
    text_member,
)
from envweave_gym.hubs.openenv.websocket_session import OpenEnvSession, fetch_schema
from envweave_gym.typed.scalars import Codec

_CALL_DEADLINE_S = 60.0
_SPACES = ("auto", "json")
_FENCED = re.compile(r"\s*```(?:json)?\n(.*?)\n?```\s*", re.DOTALL)


class OpenEnvClientEnv(gym.Env[Any, Any]):
    """The environment of an OpenEnv server: its observations, rewards and ends, and its metadata in ``info``.

    All episodes of one object run in one session of the server. A lost session is a fault; the next reset opens
    another one, a step never does. ``done`` means ``terminated``, unless the metadata say ``truncated``.
    Pickles and copies hold the arguments and the spaces, not the session, and start a server of their own.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(
        self,
        url: str = "",
        *,
        token: str | None = None,
        call_deadline: float = _CALL_DEADLINE_S,
        spaces: str = "auto",
        use_docker: bool = True,
        tag: str = "latest",
        project: str | None = None,
        **options: Any,
    ) -> None:
        """Find the server, or start it, and read its schemas.

        ``url`` is the URL of a server, ``openenv://docker/image`` or ``openenv://hf/owner/name``. ``token`` is a
        reference to an access token: ``env:NAME`` or ``file:PATH``. ``call_deadline`` limits the seconds of a reset or
        a step. With ``spaces="json"`` actions and observations are JSON objects, whatever the schemas say.

        A Space runs in the container of its image with this ``tag``. With ``use_docker=False`` its source runs in a
        virtual environment; then ``tag`` is a commit, a branch or ``"latest"``, and ``project`` may be a folder with
        the source. ``options`` are those of containers, such as ``memory="2g"``, and ``env=``, variables of the server.
        """
        check_reference(f"{ID}: token=", token)
        check_deadline(ID, "call_deadline", call_deadline)
        true_or_false(f"{ID}: use_docker", use_docker)
        if spaces not in _SPACES:
            raise InvalidArgument(f"{ID}: spaces={shown(spaces)} is unknown; there are 'auto' and 'json'")
        for name, text in {"tag": tag, "project": project or ""}.items():
            if not isinstance(text, str):
                raise InvalidArgument(f"{ID}: {name}={shown(text)} is no text")
        self._where = OpenEnvName.parse(f"{ID}: url", url)
        if token is not None and self._where.kind == "server":
            check_encrypted(f"{ID}: url", self._where.where)
        self._server_arguments: dict[str, Any] = {
            "use_docker": use_docker,
            "tag": tag,
            "project": project,
            "options": options,
        }
        self._token, self._call_deadline = token, call_deadline
        self._secrets: dict[str, Secret] = {}
        self._server: Server | None = None
        self._session: OpenEnvSession | None = None
        self._seen: Any = None
        self._seeds, self._is_over = Seeds(ID), False
        self._action_members: frozenset[str] | None = None
        self._stop_server: Any = None
        self._kinds: MetadataKinds | None = None
        try:
            self._actions, self._observations = self._codecs(is_typed=spaces == "auto")
        except BaseException:
            self.close()
            raise
        self.action_space, self.observation_space = self._actions.space, self._observations.space

    def _codecs(self, *, is_typed: bool) -> tuple[Codec, Codec]:
        server, found = self._running_server(), None
        if is_typed:
            deadline = time.monotonic() + self._call_deadline
            found = fetch_schema(server.url, self._headers(), deadline, server.direct_address)
        if found is None:  # of no interest, or of a server without schemas
            self._connected()  # so that a wrong URL is refused here
            return any_object(), any_object()
        try:
            actions = action_codec(found.get("action"), messages.SKIPPED_IN_ACTIONS)
            observations = observation_codec(found.get("observation"), messages.SKIPPED)
            of_reset = found.get("reset_observation")
            if (
                of_reset is not None
                and observation_codec(of_reset, messages.SKIPPED).space != observations.space
            ):
                observations = any_object()
        except (BadSchema, OverflowError, RecursionError) as error:
            raise NotAvailable(
                f"{server.url}: its /schema cannot be made a space: {error}; give spaces='json', with which "
                "actions and observations are any JSON objects"
            ) from None
        self._action_members = known_members(actions.space)
        return actions, observations

    def _headers(self) -> dict[str, str]:
        if self._token is None:
            return {}
        try:
            secret = Secret(read_reference(self._token)).reveal()
        except (KeyError, OSError, ValueError) as error:
            raise InvalidArgument(f"{ID}: there is no token in {self._token}: {error}") from None
        return {"Authorization": f"Bearer {secret}"}

    # Server and session

    def _running_server(self) -> Server:
        """Return the server; start it if this object has none, or if it has ended."""
        if self._server is None:
            server = self._server = self._where.server(ID, **self._server_arguments)
            # In another thread: the end of a container takes seconds, and garbage is collected anywhere.
            self._stop_server = weakref.finalize(self, _stop_soon, server)
            self._stop_server.atexit = False
        else:
            self._server.ensure()
        return self._server

    def _connected(self) -> OpenEnvSession:
        """Return the session, or open one if there is none or it is lost."""
        session = self._session
        if session is None or session.is_lost:
            server = self._running_server()
            self._session = None
            deadline = time.monotonic() + self._call_deadline  # which a start of the server does not use up
            session = OpenEnvSession(server.url, self._headers(), deadline, server.direct_address)
            self._session = session
        return session

    # The interface of Gymnasium

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; ``options`` are the arguments of the server's own ``reset``.

        Every reset sends a seed: without ``seed`` one that is drawn from the last given one.
        """
        chosen = self._seeds.next(seed)
        super().reset(seed=chosen)
        data = dict(options or {})
        if "seed" in data:
            raise InvalidArgument(f"{ID}: the seed of a reset is no option; give reset(seed=…)")
        data["seed"] = chosen
        sent = {**data, **{name: one.reveal() for name, one in self._secrets.items()}}
        session = self._connected()
        session.keep_secret(self._secrets.values())
        deadline = time.monotonic() + self._call_deadline
        seen = self._observed(session, session.call(messages.RESET, sent, deadline))
        self._is_over = seen.done
        return self._seen, self._info_of(seen)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Send an action; raise ``SessionLost`` if the session is gone, as another would be a fresh environment."""
        session = self._session
        if session is None:
            raise SessionLost(
                f"{self._where.name}: there is no session, and a copy has none before its reset"
            )
        if self._is_over:  # since the reset, which cannot say so
            return copy.deepcopy(self._seen), 0.0, True, False, {}
        data = self._actions.typed(action)
        reply = session.call(
            messages.STEP, data, time.monotonic() + self._call_deadline, self._action_members
        )
        seen = self._observed(session, reply)
        info = self._info_of(seen)
        if seen.reward is None:
            info["reward_missing"] = True
        truncated = seen.done and seen.metadata.get("truncated") is True
        terminated = seen.done and (not truncated or seen.metadata.get("terminated") is True)
        return self._seen, seen.reward or 0.0, terminated, truncated, info

    def _observed(self, session: OpenEnvSession, reply: dict[str, Any]) -> messages.Observed:
        """Return what a reply says, and keep its observation; a wrong one closes the session."""
        try:
            seen = messages.observed(session.url, reply)
            self._seen = self._observations.member(seen.observation)
        except SessionLost as error:
            session.close()
            raise session.without_secrets(error) from None
        except (ValueError, OverflowError, RecursionError) as error:
            session.close()
            wrong = SessionLost(
                f"{session.url} sent an observation that is not in the space of its /schema: {error}; "
                "spaces='json' takes any"
            )
            raise session.without_secrets(wrong) from None
        return seen

    def _info_of(self, seen: messages.Observed) -> dict[str, Any]:
        if self._kinds is None:  # as in a copy
            self._kinds = kinds_of(self._where.name)
        return self._kinds.info_of(seen.metadata)

    def close(self) -> None:
        """End the session, and the server if it was started for this environment; a later reset begins anew."""
        session, self._session = self._session, None
        server, self._server = self._server, None
        stop, self._stop_server = self._stop_server, None
        if stop is not None:
            stop.detach()
        if session is not None:
            session.close()
        if server is not None:
            server.stop()

    # The optional protocols of this package

    def parse_action(self, text: str, agent: str | None = None) -> Any:
        """Return the action that a model's reply means: JSON, or the text of the only required member."""
        require_text(text)
        payload, only_text = _json_object(text), text_member(self.action_space)
        known = known_members(self.action_space)
        if payload is None or (only_text is not None and only_text not in payload):
            if only_text is None:
                raise ValueError(f"{shown(text)} is no JSON object, as actions in {self.action_space} are")
            payload = {only_text: text}
        if known is not None:  # a model may put its reasoning into another member
            payload = {name: value for name, value in payload.items() if name in known}
        return self._actions.member(payload)

    def episode_state(self) -> dict[str, Any]:
        """Return the server's state of the episode; empty without a session, or if the session is lost."""
        session = self._session
        if session is None or session.is_lost:
            return {}
        with suppress(EnvweaveError, OSError):  # the next step reports what is lost
            return session.call(messages.STATE, None, time.monotonic() + self._call_deadline)
        return {}

    def schemas(self) -> dict[str, Any]:
        """Return the JSON object at the server's ``/schema``; empty if it has none."""
        server = self._running_server()
        deadline = time.monotonic() + self._call_deadline
        return fetch_schema(server.url, self._headers(), deadline, server.direct_address) or {}

    def entrust(self, **secrets: str) -> None:
        """Send these secrets with all later resets, in place of those given before; no event and no error has them.

        They are refused if they would go to another machine unencrypted.
        """
        if secrets and self._where.kind == "server":
            check_encrypted(f"{ID}: url", self._where.where)
        self._secrets = {name: Secret(text) for name, text in secrets.items()}

    def __getstate__(self) -> dict[str, Any]:
        own = {"_server": None, "_session": None, "_stop_server": None, "_kinds": None}
        return {**self.__dict__, **own}


def _stop_soon(server: Server) -> None:
    with suppress(RuntimeError):  # the process ends, and its servers with it
        start_new_thread(_stop, (server,))


def _stop(server: Server) -> None:
    with suppress(EnvweaveError, OSError):  # nobody waits for it; a container is swept later
        server.stop()


def _json_object(text: str) -> dict[str, Any] | None:
    fenced = _FENCED.fullmatch(text)
    try:
        found = json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None

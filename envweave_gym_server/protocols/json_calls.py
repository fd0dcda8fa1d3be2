"""Calls of a session by protocols that speak JSON: resets, steps and questions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envweave_gym.core.faults import EnvweaveError, Fault, InvalidArgument, NotAvailable
from envweave_gym.wire.messages import (
    Answer,
    Ask,
    Began,
    Create,
    Refused,
    Reply,
    Reset,
    Step,
    Stepped,
    encode,
    pack,
    read_reply,
)
from envweave_gym_server.environments.questions import DESCRIBE
from envweave_gym_server.protocols.rest.actions import Actions
from envweave_gym_server.protocols.rest.replies import selection_of
from envweave_gym_server.sessions.service import SessionService
from envweave_gym_server.sessions.session import Left, Session, Snapshot

_QUESTION = -2
"""Number of questions; as nothing is sent twice, all have the same."""
_ACTIONS = "json_actions"
"""Key in ``Session.notes`` of the parser for actions."""


class CallRefused(EnvweaveError):
    """Error reply of a session as an exception: the call was not executed, or its environment raised."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.message)
        self.refused = refused


class EpisodeLost(EnvweaveError):
    """Error if an episode ended with a fault of the environment's own, so that its reward says nothing."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(f"the episode was lost: {fault.message}; reset to begin another")
        self.fault = fault


def api_of(service: SessionService, name: str, kwargs: dict[str, Any], *, turn_based: bool = False) -> str:
    """Return the API by which an ID is played without vectors: ``gym``, or that of its game.

    ``turn_based`` chooses, of the two APIs of a game, that in which one agent after the other acts.
    """
    offer = service.offers.find(name)
    if offer.apis[0] == "gym" and "parallel" in offer.apis:  # a factory that does not say
        api: str = service.description(Create(offer.name, "", kwargs))["api"]
    else:
        api = offer.apis[0]
    return "aec" if turn_based and api == "parallel" and "aec" in offer.apis else api


def open_session(
    service: SessionService,
    session_id: str,
    name: str,
    kwargs: dict[str, Any],
    left: Left,
    *,
    turn_based: bool = False,
) -> Session:
    """Create a session whose environment raises, instead of truncating, when an episode is lost."""
    offer, api = service.offers.find(name), api_of(service, name, kwargs, turn_based=turn_based)
    given = {"on_fault": "raise", **kwargs} if api == "gym" else kwargs
    return create_session(service, session_id, Create(offer.name, api, given), left)


def create_session(service: SessionService, session_id: str, create: Create, left: Left) -> Session:
    """Create a session, whose environment may truncate or raise when an episode is lost."""
    frame = encode(Create(create.env_id, create.api, pack(create.kwargs)))
    session, reply = service.sessions.create(session_id, create, frame, left)
    checked(read_reply(reply))
    return session


def question(session: Session, left: Left, name: str, argument: Any = None) -> Any:
    """Return the answer to a question; raise :class:`CallRefused` with the session's reason if there is none."""
    message = Ask(_QUESTION, name, argument)
    frame = encode(Ask(_QUESTION, name, pack(argument)))
    return checked(read_reply(session.call(message, frame, left))).value


def peek(session: Session, left: Left, name: str) -> tuple[Any, Snapshot]:
    """Return the answer to a question, ``None`` if there is none, and the snapshot then, without renewing the lease."""
    message = Ask(_QUESTION, name)
    frame, snapshot = session.peek(message, encode(message), left)
    reply = read_reply(frame)
    return reply.value if isinstance(reply, Answer) else None, snapshot


def checked(reply: Reply) -> Any:
    """Return a reply; raise :class:`CallRefused` if it is an error reply."""
    if isinstance(reply, Refused):
        raise CallRefused(reply)
    return reply


def description_of(session: Session, left: Left) -> dict[str, Any]:
    """Return the description of a session's environment: API, spaces, metadata.

    No client asked for it, so it neither counts as a call nor renews the lease.
    """
    message = Ask(_QUESTION, DESCRIBE)
    frame, _ = session.peek(message, encode(message), left)
    described = checked(read_reply(frame)).value
    if not isinstance(described, dict):
        raise NotAvailable(f"{session.env_id} does not say what its actions are; use another environment")
    return described


# Resets and steps


def actions_of(session: Session, left: Left) -> Actions:
    """Return the parser for JSON actions of a session, built from its description and stored with it."""
    actions: Actions | None = session.notes.get(_ACTIONS)
    if actions is None:
        rows = session.create.kwargs.get("num_envs", 1)
        actions = Actions(session.env_id, description_of(session, left), rows)
        session.notes[_ACTIONS] = actions
    return actions


Build = Callable[[int], tuple[Reset | Step, bytes]]
"""Function from the number of a call to its message and frame."""


def execute(session: Session, build: Build, left: Left, number: int | None = None) -> Any:
    """Execute a call and return its reply; ``number`` is the client's own for it, by default the next one."""
    frame = session.call_next(build, left) if number is None else session.call(*build(number), left)
    return checked(read_reply(frame))


def reset_call(seed: Any, options: dict[str, Any] | None) -> Build:
    """Return the builder of a reset."""

    def build(number: int) -> tuple[Reset, bytes]:
        frame = encode(Reset(number, pack(seed), pack(options)))
        return Reset(number, seed, options), frame

    return build


def reset(session: Session, seed: Any, options: dict[str, Any] | None, left: Left) -> Began:
    """Begin an episode."""
    return execute(session, reset_call(seed, options), left)


ActionReader = Callable[[], Any]
"""Function that returns the action of a step; it is called while no other call of the session can be executed."""


def action_from_json(session: Session, value: Any, left: Left) -> ActionReader:
    """Return the action for JSON in the form of the action space; in a turn-based game that of the selected agent."""
    actions = actions_of(session, left)

    def read() -> Any:
        last = last_reply(session) if actions.is_turn_based else None
        return actions.read(value, None if last is None else selection_of(last))

    return read


def action_from_text(session: Session, text: str, left: Left) -> ActionReader:
    """Return the action in a language model's reply, as :func:`envweave_gym.parse_action` finds it."""
    last = last_reply(session) if actions_of(session, left).is_turn_based else None
    action = question(session, left, "parse_action", [text, None if last is None else selection_of(last)])
    return lambda: action


def step_call(action_of: ActionReader) -> Build:
    """Return the builder of a step; if ``action_of`` raises, nothing is done."""

    def build(number: int) -> tuple[Step, bytes]:
        action = action_of()
        return Step(number, action), encode(Step(number, pack(action)))

    return build


def step(session: Session, action_of: ActionReader, left: Left) -> Stepped:
    """Take one step; if ``action_of`` raises, nothing is done."""
    stepped = execute(session, step_call(action_of), left)
    raise_own_fault(stepped)
    return stepped


def last_reply(session: Session) -> Began | Stepped | None:
    """Return the last reply to a reset or step; ``None`` before the first, and after a crash."""
    return reply_in(session.snapshot)


def reply_in(snapshot: Snapshot) -> Began | Stepped | None:
    """Return the reply to a reset or step in a snapshot; ``None`` before the first, and after a crash."""
    reply = read_reply(snapshot.reply)
    return reply if isinstance(reply, Began | Stepped) else None


def raise_own_fault(reply: Began | Stepped) -> None:
    """Raise :class:`EpisodeLost` if the environment has put a fault into its info."""
    info: Any = reply.info
    fault = info.get("fault") if isinstance(info, dict) else None
    if isinstance(fault, Fault):
        raise EpisodeLost(fault)


class HasBegun(Exception):
    """Signal that no reset is needed, because the session has had one."""


def begin(session: Session, left: Left) -> Began | None:
    """Begin the first episode of a session; return ``None`` if the session has had one, even if it is over.

    The check is made under the session's lock, so of two clients that begin at the same time one resets.
    """

    def build(number: int) -> tuple[Reset, bytes]:
        if number > 1:
            raise HasBegun
        return Reset(number), encode(Reset(number))

    try:
        return checked(read_reply(session.call_next(build, left)))
    except HasBegun:
        return None


def is_live(last: Began | Stepped | None) -> bool:
    """Return whether the episode goes on after this reply."""
    if last is None:
        return False
    info: Any = last.info
    if is_game(info):
        return bool(info["agents"])
    return not (isinstance(last, Stepped) and (last.terminated or last.truncated))


def is_game(info: Any) -> bool:
    """Return whether this is the info of a game's reply, which has agents and their infos."""
    return isinstance(info, dict) and "infos" in info and "agents" in info and "stream" not in info


def step_dead_agents(
    session: Session, left: Left, before: Callable[[str, Stepped], None] | None = None
) -> Stepped | None:
    """Step the dead agents of a turn-based game with ``None`` until a live one is selected; return the last reply.

    ``before`` gets the name of each dead agent and the reply before its step, the last one that has its reward.
    """

    def none_for_a_dead_agent() -> None:
        if dead_selection(last_reply(session)) is None:
            raise InvalidArgument("another client has stepped this game meanwhile; look at it again")

    stepped: Stepped | None = None
    while (dead := dead_selection(last := last_reply(session))) is not None:
        if before is not None and isinstance(last, Stepped):
            before(dead, last)
        stepped = step(session, none_for_a_dead_agent, left)
    return stepped


def dead_selection(last: Began | Stepped | None) -> str | None:
    """Return the selected agent of a turn-based game if it is dead, so that its next step must be ``None``."""
    agent = selection_of(last) if isinstance(last, Stepped) else None
    if agent is None or not isinstance(last, Stepped):
        return None
    return agent if last.terminated[agent] or last.truncated[agent] else None

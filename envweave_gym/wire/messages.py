"""The messages of a session, in one place for client and server.

A *session* is one environment, one vector of them or one game on a server. The client chooses its id and
numbers the calls that change it: ``create`` is call 0, then every ``reset`` and ``step`` is one more. The
server does the next call, answers the last one again when the same is sent again, and refuses any other
number; so a call is done once, however often it is sent. What only asks has no number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from envweave_gym.wire.values import pack, unpack

VERSION = 3
"""The version of the protocol; a server refuses clients with another version.

Since version 3 the infos of all vectors are sent in the same form.
"""


CONTENT_TYPE = "application/msgpack"
"""The content type of a frame in the body of an HTTP request or response."""

LARGEST_REPLY = 1 << 30
"""The limit of a reply in bytes; a header that announces more was corrupted on its way."""

TOO_LARGE = b""
"""The empty frame that an actor sends over its Unix socket if the reply is too large for it.

The client then gets the reply by a call of Ray.
"""


def socket_of_actor(name: str) -> str:
    """Return the address of the Unix socket at which the actor with this namespace and name listens."""
    return f"@envweave/{name}"


class _Message(msgspec.Struct, array_like=True, gc=False):
    """A message is an array on the wire: its name, then its fields."""


# From the client


class Hello(_Message, tag="hello"):
    """The first frame of a connection over a Unix socket; a server replies only to refuse it."""

    token: str = ""
    session: str = ""
    """The ID of the session whose frames follow.

    If it is empty, what follows are creates (for a description) and questions about the server.
    """


class Create(_Message, tag="create"):
    """Make the environment of a new session: call 0."""

    env_id: str
    api: str = "gym"
    """``gym``, ``vector``, ``aec`` or ``parallel``; empty in a request for a description: whichever it has."""
    kwargs: dict[str, Any] = {}
    version: int = VERSION


class Reset(_Message, tag="reset"):
    """Start an episode, or episodes in the rows of ``options["reset_mask"]``."""

    call: int
    seed: Any = None
    options: Any = None


class Step(_Message, tag="step"):
    """Act: with an action, the actions of all rows, or a dict of the actions of agents."""

    call: int
    action: Any


class Ask(_Message, tag="ask"):
    """Ask a question that changes nothing, such as ``state``, ``render``, ``parse_action`` or ``observe``."""

    number: int
    """The number of the question: below -1, and different for every question."""
    question: str
    argument: Any = None


class Close(_Message, tag="close"):
    """Close the session."""

    number: int


Call = Create | Reset | Step | Ask | Close


def number_of(message: Call) -> int:
    """Return the number of a call or a question, which the reply repeats."""
    if isinstance(message, Create):
        return 0
    return message.number if isinstance(message, Ask | Close) else message.call


# From the server


class Created(_Message, tag="created"):
    """The session exists; ``call`` is the number of its last call."""

    call: int


class Began(_Message, tag="began"):
    """The reply to a reset."""

    call: int
    observation: Any
    info: Any


class Stepped(_Message, tag="stepped"):
    """The reply to a step."""

    call: int
    observation: Any
    reward: Any
    terminated: Any
    truncated: Any
    info: Any


class Answer(_Message, tag="answer"):
    """The reply to a question."""

    number: int
    value: Any


class Refused(_Message, tag="refused"):
    """The reply to a call that was not done, or whose environment raised an exception."""

    number: int
    """The number of the call or the question; -1 where the server could not read it."""
    kind: str
    """The class name of the exception, or ``Conflict`` or ``ServerError``."""
    message: str
    committed: int = -1
    """The number of the last call that was done."""
    cause: str = ""
    """The type name of the exception that a constructor raised; empty in other refusals."""


Reply = Created | Began | Stepped | Answer | Refused

DONE_ALL_THE_SAME = ("EnvironmentCrashed", "FaultStorm")
"""The kinds of refusals whose calls count as done: the episode is lost, and repeating changes nothing."""

DELETE = "delete"
"""The question that closes a session from another connection; its argument is the session's ID."""

HEALTH = "health"
"""The question about the server, sent without a session; the answer has ``sessions`` and ``stopping``."""

NUMBERLESS = -1
"""The ``number`` in a reply to a message whose own number could not be read."""

# Methods of codecs, not functions around them: each frame would pay for the call.
encode: Callable[[Hello | Call | Reply], bytes] = msgspec.msgpack.Encoder().encode
"""Encode a message as a frame; its values are packed already (:func:`envweave_gym.wire.values.pack`)."""
read_hello: Callable[[bytes], Hello] = msgspec.msgpack.Decoder(Hello).decode
"""Decode the first message of a connection; raise ``ValueError`` if the frame is not a ``Hello``."""
read_call: Callable[[bytes], Call] = msgspec.msgpack.Decoder(Call, ext_hook=unpack).decode
"""Decode a message of a client; raise ``ValueError`` or ``RecursionError`` if it is not a ``Call``."""
read_reply: Callable[[bytes], Reply] = msgspec.msgpack.Decoder(Reply, ext_hook=unpack).decode
"""Decode a message of a server."""

__all__ = [
    "CONTENT_TYPE",
    "DELETE",
    "DONE_ALL_THE_SAME",
    "HEALTH",
    "LARGEST_REPLY",
    "NUMBERLESS",
    "TOO_LARGE",
    "VERSION",
    "Answer",
    "Ask",
    "Began",
    "Call",
    "Close",
    "Create",
    "Created",
    "Hello",
    "Refused",
    "Reply",
    "Reset",
    "Step",
    "Stepped",
    "encode",
    "number_of",
    "pack",
    "read_call",
    "read_hello",
    "read_reply",
    "socket_of_actor",
]

"""Messages between client and server, and their encoding as frames.

A *session* is one environment, one vector or one game on a server. The client chooses its id and numbers the
calls that change it: ``create`` is call 0, and every ``reset`` and ``step`` is one more. The server executes
the next call, repeats its reply if the last one comes again, and refuses any other number. So a call is
executed once, however often it is sent. A question, such as ``render``, changes nothing; it has a negative number
outside of this sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from envweave_gym.wire.values import pack, unpack

VERSION = 3
"""Version of the protocol; a server refuses clients with another version.

Since version 3 the infos of all vectors are sent in the same form.
"""


CONTENT_TYPE = "application/msgpack"
"""Content type of a frame in the body of an HTTP request or response."""

LARGEST_REPLY = 1 << 30
"""Limit of a reply in bytes; a header that announces more was corrupted on its way."""


def socket_of_actor(name: str) -> str:
    """Return the address of the Unix socket on which the Ray actor ``namespace/name`` listens."""
    return f"@envweave/{name}"


class _Message(msgspec.Struct, array_like=True, gc=False):
    """Base class of messages; on the wire a message is an array of its name and its fields."""


# From the client


class Hello(_Message, tag="hello"):
    """First frame of a connection over a Unix socket; a server replies to it only to refuse it."""

    token: str = ""
    session: str = ""
    """Id of the session whose frames follow; empty for requests for descriptions and questions about the server."""


class Create(_Message, tag="create"):
    """Call 0 of a session: make its environment."""

    env_id: str
    api: str = "gym"
    """``gym``, ``vector``, ``aec`` or ``parallel``; a request for a description may leave it empty, for any of them."""
    kwargs: dict[str, Any] = {}
    version: int = VERSION


class Reset(_Message, tag="reset"):
    """Call to start an episode, in a vector in all rows or in those of ``options["reset_mask"]``."""

    call: int
    seed: Any = None
    options: Any = None


class Step(_Message, tag="step"):
    """Call to step with an action, the actions of all rows, or a dict of the actions of agents."""

    call: int
    action: Any


class Ask(_Message, tag="ask"):
    """Question that changes nothing, such as ``state``, ``render``, ``parse_action`` or ``observe``."""

    number: int
    """Number of the question: below -1, and different for every question."""
    question: str
    argument: Any = None


class Close(_Message, tag="close"):
    """Request to close the session."""

    number: int


Call = Create | Reset | Step | Ask | Close


def number_of(message: Call) -> int:
    """Return the number of a call or question, which the reply repeats."""
    if isinstance(message, Create):
        return 0
    return message.number if isinstance(message, Ask | Close) else message.call


# From the server


class Created(_Message, tag="created"):
    """Reply to a create; ``call`` is the number of the session's last call."""

    call: int


class Began(_Message, tag="began"):
    """Reply to a reset."""

    call: int
    observation: Any
    info: Any


class Stepped(_Message, tag="stepped"):
    """Reply to a step."""

    call: int
    observation: Any
    reward: Any
    terminated: Any
    truncated: Any
    info: Any


class Answer(_Message, tag="answer"):
    """Reply to a question."""

    number: int
    value: Any


class Refused(_Message, tag="refused"):
    """Error reply: the call was not executed, or its environment raised an exception."""

    number: int
    """Number of the call or question; -1 if the server could not read it."""
    kind: str
    """Class name of the exception, or ``Conflict`` or ``ServerError``."""
    message: str
    committed: int = -1
    """Number of the last call that was executed."""
    cause: str = ""
    """Type name of the exception that a constructor raised; empty in other error replies."""


Reply = Created | Began | Stepped | Answer | Refused

DONE_ALL_THE_SAME = ("EnvironmentCrashed", "FaultStorm")
"""Kinds of error replies whose calls count as executed: the episode is lost, and a repetition changes nothing."""

DELETE = "delete"
"""Question that closes a session from another connection; its argument is the session's id."""

HEALTH = "health"
"""Question about the server, sent without a session; the answer has ``sessions`` and ``stopping``."""

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

"""The JSON bodies of the Open Reward Standard as structs: whatever a server sends is checked against them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

_Count = Annotated[int, msgspec.Meta(ge=0)]


class TextBlock(msgspec.Struct, frozen=True, tag="text"):
    """A piece of text in a prompt or in the output of a tool."""

    text: str


class ImageBlock(msgspec.Struct, frozen=True, tag="image"):
    """An image as Base64."""

    data: str
    mimeType: str


Block = TextBlock | ImageBlock


class Split(msgspec.Struct, frozen=True):
    """A split of an environment's tasks."""

    name: str


class TaskCount(msgspec.Struct, frozen=True):
    """The number of tasks of a split."""

    num_tasks: _Count


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool: its name, and a JSON schema of its input."""

    name: str
    description: str = ""
    input_schema: dict[str, Any] | None = None

    def as_function(self) -> dict[str, Any]:
        """Return the tool in the form that chat APIs take."""
        schema = self.input_schema or {"type": "object", "properties": {}}
        function = {"name": self.name, "description": self.description, "parameters": schema}
        return {"type": "function", "function": function}


class Tools(msgspec.Struct, frozen=True):
    """The tools of an environment or of a task."""

    tools: list[ToolSpec]


class ToolOutput(msgspec.Struct, frozen=True):
    """The output of a tool: blocks, the reward of the call, and whether the episode is over."""

    blocks: list[Block]
    reward: float | None = None
    finished: bool = False
    metadata: dict[str, Any] | None = None


class ToolReply(msgspec.Struct, frozen=True):
    """The reply to a call: an output if ``ok``, else an error for the caller, such as a wrong input."""

    ok: bool
    output: ToolOutput | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        if (self.output if self.ok else self.error) is None:
            raise ValueError(f"a reply with ok={self.ok} has no {'output' if self.ok else 'error'}")


class Problem(msgspec.Struct, frozen=True):
    """The body of a refusal."""

    detail: Any = ""


def text_of(blocks: list[Block]) -> str:
    """Return blocks as text, with a note in place of each image."""
    return "\n".join(
        block.text if isinstance(block, TextBlock) else f"[an image, {block.mimeType}]" for block in blocks
    )


def content_of(blocks: list[Block]) -> str | list[dict[str, Any]]:
    """Return blocks as the content of a chat message: a text, or parts if there is an image."""
    if all(isinstance(block, TextBlock) for block in blocks):
        return text_of(blocks)
    return [
        {"type": "text", "text": block.text}
        if isinstance(block, TextBlock)
        else {"type": "image_url", "image_url": {"url": f"data:{block.mimeType};base64,{block.data}"}}
        for block in blocks
    ]

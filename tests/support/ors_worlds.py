"""A real server of the Open Reward Standard, for tests: run as a program with a port, it serves three environments."""

from __future__ import annotations

import os
import sys
from typing import Any

from ors.environment import Environment, tool
from ors.server import Server
from ors.types import ImageBlock, Split, TextBlock, ToolOutput, ToolSpec
from pydantic import BaseModel

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="


class Number(BaseModel):
    value: int


class Sums(Environment):
    """Adds two numbers; the second wrong answer ends the episode."""

    def __init__(self, task_spec: Any = {}, secrets: Any = {}) -> None:  # noqa: B006
        super().__init__(task_spec, secrets)
        self.tries = 0

    @classmethod
    def list_splits(cls) -> list[Any]:
        return [Split(name="train", type="train"), "test"]

    @classmethod
    def list_tasks(cls, split: str) -> list[Any]:
        return [{"a": a, "b": a + 1} for a in range(6 if split == "train" else 2)]

    def get_prompt(self) -> list[Any]:
        return [TextBlock(text=f"What is {self.task_spec['a']} + {self.task_spec['b']}?")]

    def list_task_tools(self) -> Any:
        shared = super().list_task_tools()
        return type(shared)(tools=[ToolSpec(name="hint", description="A hint.", input_schema=None)])

    @tool
    def answer(self, given: Number) -> ToolOutput:
        """Answer with a number."""
        self.tries += 1
        right = given.value == self.task_spec["a"] + self.task_spec["b"]
        text = "Right." if right else "Wrong. " + "é" * 5000
        blocks = [TextBlock(text=text)]
        return ToolOutput(blocks=blocks, reward=float(right), finished=right or self.tries > 1)

    @tool(shared=False)
    def hint(self) -> ToolOutput:
        """A hint."""
        blocks = [TextBlock(text="Look:"), ImageBlock(data=PIXEL, mimeType="image/png")]
        return ToolOutput(blocks=blocks, metadata={"cost": 1})

    @tool
    def crash(self) -> ToolOutput:
        """Raise an error."""
        raise RuntimeError("the tool is broken")

    @tool
    def leave(self) -> ToolOutput:
        """End the server."""
        os._exit(3)


class Empty(Sums):
    """Has no tasks."""

    _num_tasks_cache: dict[str, int] = {}  # the SDK would use that of the base class

    @classmethod
    def list_tasks(cls, split: str) -> list[Any]:
        return []


class Unready(Sums):
    """Cannot be set up."""

    def setup(self) -> None:
        raise RuntimeError("no machine is free")


if __name__ == "__main__":
    Server([Sums, Empty, Unready]).run(host="127.0.0.1", port=int(sys.argv[1]))

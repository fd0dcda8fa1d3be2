"""Wheels of hub environments, written as files of a zip, and the sources of packages of both generations."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence

V0_SOURCE = '''
import verifiers as vf
from datasets import Dataset

ROWS = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(1, 5)]


def right(parser, completion, answer, **_):
    return 1.0 if (parser.parse_answer(completion) or "").strip() == answer else 0.0


def short(parser, completion, **_):
    return 1.0 / (1 + len(parser.parse_answer(completion) or ""))


class Guess(vf.MultiTurnEnv):
    @vf.stop
    async def solved(self, state):
        turns = state["trajectory"]
        return bool(turns) and turns[-1]["completion"][-1].content.strip() == state["answer"]

    async def env_response(self, messages, state, **_):
        return [{"role": "user", "content": f"Not {messages[-1].content}. Again."}]


async def add(a: int, b: int) -> str:
    """Add two numbers.

    Args:
        a: one number
        b: another number
    """
    return str(int(a) + int(b))


def load_environment(kind="single", fails="", rows=4, **given):
    if fails == "load":
        raise ValueError("this package does not want to")
    parser = vf.Parser()
    rubric = vf.Rubric(funcs=[right, short], weights=[1.0, 0.25], parser=parser)
    about = {"dataset": Dataset.from_list(ROWS[:rows]), "rubric": rubric, "parser": parser}
    if kind == "single":
        return vf.SingleTurnEnv(system_prompt="Answer with a number.", **about)
    if kind == "multi":
        return Guess(max_turns=3, **about)
    return vf.ToolEnv(tools=[add], max_turns=4, **about)
'''
"""A package of the first generation: ``kind`` is ``single``, ``multi`` (guesses) or ``tool``."""

V1_SOURCE = '''
import asyncio
import verifiers.v1 as vf

__all__ = ["SumsTaskset", "SumsEnv"]


class SumsData(vf.TaskData):
    answer: str


class Calculator(vf.Toolset[vf.SharedToolsetConfig, vf.State]):
    @vf.tool
    async def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)


class SumsTask(vf.Task[SumsData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)
    async def right(self, task, trace) -> float:
        return 1.0 if trace.last_reply == task.answer else 0.0

    @vf.metric
    async def length(self, trace) -> float:
        return float(len(trace.last_reply))


class SumsConfig(vf.TasksetConfig):
    rows: int = 4
    tools: bool = False
    endless: bool = False


class SumsTaskset(vf.Taskset[SumsTask, SumsConfig]):
    @property
    def INFINITE(self):
        return self.config.endless

    def load(self):
        n = 0
        while self.config.endless or n < self.config.rows:
            n += 1
            data = SumsData(idx=n - 1, prompt=f"What is {n} + {n}?", system_prompt="A number.", answer=str(2 * n))
            yield SumsTask(data, self.config.task)

    @classmethod
    def toolsets(cls, config):
        return [Calculator(vf.SharedToolsetConfig())] if config.tools else []


class SumsEnvConfig(vf.EnvConfig):
    mode: str = "one"
    agent: vf.AgentConfig = vf.AgentConfig()
    rival: vf.AgentConfig = vf.AgentConfig(client=vf.EvalClientConfig(base_url="http://127.0.0.1:1/v1"))


class SumsEnv(vf.Env[SumsEnvConfig]):
    """One agent; ``mode`` says how it plays."""

    async def run(self, task, agents):
        if self.config.mode == "twice":
            await agents.agent.run(task)
        if self.config.mode in ("one", "twice"):
            await agents.agent.run(task)
            return
        async with agents.agent.interaction(task) as it:
            segment = await it.turn()
            for _ in range(2):
                if segment.terminated or segment.last_reply == task.data.answer:
                    break
                segment = await it.turn(f"Not {segment.last_reply}. Again.")


if __name__ == "__main__":  # the library starts tool servers so
    Calculator.run()
'''
"""A package of the second generation with one agent, and a second role with a client of its own."""

V1_PAIR_SOURCE = """
import asyncio
import verifiers.v1 as vf

__all__ = ["PairTaskset", "PairEnv"]


class PairTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    pass


class PairTaskset(vf.Taskset[PairTask, vf.TasksetConfig]):
    def load(self):
        for n in range(3):
            yield PairTask(vf.TaskData(idx=n, prompt=f"Say a number above {n}."), self.config.task)


class PairEnvConfig(vf.EnvConfig):
    left: vf.AgentConfig = vf.AgentConfig()
    right: vf.AgentConfig = vf.AgentConfig(harness={"id": "null", "tool_timeout": 7.0})


class PairEnv(vf.Env[PairEnvConfig]):
    async def run(self, task, agents):
        await asyncio.gather(agents.left.run(task), agents.right.run(task))

    async def finalize(self, task, episode):
        by_name = {trace.agent.name: trace for trace in episode.traces}
        gap = float(by_name["left"].last_reply) - float(by_name["right"].last_reply)
        by_name["left"].record_reward("higher", gap)
        by_name["right"].record_reward("higher", -gap, 0.5)
"""
"""A package of the second generation whose two agents answer at the same time, and get different rewards."""

V1_SHELL_SOURCE = """
import verifiers.v1 as vf

__all__ = ["ShellTaskset", "ShellEnv"]


class ShellTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    pass


class ShellTaskset(vf.Taskset[ShellTask, vf.TasksetConfig]):
    def load(self):
        yield ShellTask(vf.TaskData(idx=0, prompt="Fix it."), self.config.task)


class ShellConfig(vf.EnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig(harness={"id": "bash"})


class ShellEnv(vf.Env[ShellConfig]):
    async def run(self, task, agents):
        await agents.agent.run(task)
"""
"""A package of the second generation that names a harness with a shell."""

LOADED_SOURCE = """
import verifiers as vf
from datasets import load_dataset


def load_environment():
    rows = load_dataset("acme/sums", "main", split="train")
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[lambda completion, answer, **_: 1.0]))
"""
"""A package of the first generation that reads a data set by its name on the Hugging Face hub."""


def wheel_name(name: str, version: str) -> str:
    return f"{name.replace('-', '_')}-{version}-py3-none-any.whl"


def wheel(
    name: str,
    version: str = "1.0.0",
    source: str = "",
    *,
    requires: Sequence[str] = (),
    files: Mapping[str, bytes] | None = None,
    metadata: str | None = None,
    module: str | None = None,
) -> bytes:
    """The bytes of a wheel; ``files`` are added as they are, and ``metadata`` replaces the right one."""
    module = module or name.replace("-", "_").lower()
    dist_info = f"{name.replace('-', '_')}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {one}" for one in requires]
    contents: dict[str, bytes] = {
        f"{module}.py": source.encode(),
        **(files or {}),
        f"{dist_info}/METADATA": ("\n".join(lines) + "\n" if metadata is None else metadata).encode(),
        f"{dist_info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in contents.items())
    contents[f"{dist_info}/RECORD"] = f"{record}{dist_info}/RECORD,,\n".encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for path, data in contents.items():
            file.writestr(zipfile.ZipInfo(path), data)
    return buffer.getvalue()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()

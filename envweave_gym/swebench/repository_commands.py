"""Parses and runs the commands by which a model explores a repository before its final patch.

``ls PATH``, ``cat PATH [FROM-TO]`` and ``grep PATTERN PATH`` only read, so they share one workspace.
``test PATH …`` applies the diff below it, if there is one, and runs tests of the repository that are not hidden.
Tests may change files, so their workspace is closed afterwards.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

from envweave_gym.data.swebench_lite import Instance
from envweave_gym.data.swebench_scripts import selected
from envweave_gym.swebench.diffs import MAX_CHARS, diff_in, parse_diff
from envweave_gym.swebench.evaluation import Trial
from envweave_gym.swebench.evaluation_scripts import apply_patch
from envweave_gym.swebench.evaluation_semaphore import slot
from envweave_gym.swebench.grading import END, START
from envweave_gym.swebench.open_workspaces import EpisodeWorkspace
from envweave_gym.swebench.patch_rules import NO_DIFF, violations, violations_of_tree
from envweave_gym.swebench.workspace import Workspace

MAX_OUTPUT_CHARS = 16_000
"""Longer outputs lose their end; those of tests lose their beginning, as the summary is at the end."""
USAGE = (
    "ls PATH | cat PATH [FROM-TO] | grep PATTERN PATH | test [PATH …], with a diff below it or none; "
    "paths are those of the repository"
)
NAMES = ("ls", "cat", "grep", "test")
_WORD_COUNTS = {"ls": (0, 1), "cat": (1, 2), "grep": (1, 2), "test": (0, 32)}
_LINES = re.compile(r"(\d{1,9})-(\d{1,9})")
_READ_TIMEOUT_S, _SLOT_TIMEOUT_S = 30.0, 600.0
_READ = """\
root=$(realpath -e -- {testbed})
path=$(realpath -e -- "$root"/{path} 2> /dev/null) || {{ echo 'there is no such path'; exit; }}
case $path/ in
    "$root"/.git/*) echo 'what git keeps is not shown'; exit;;
    "$root"/*) ;;
    *) echo 'that is outside of the repository'; exit;;
esac
cd "$root" && path=${{path#"$root"}} && path=${{path#/}} && path=${{path:-.}}
{{ {command}; }} 2>&1 | head -c {most}
"""
_COMMANDS = {
    "ls": 'ls -1Ap --ignore=.git -- "$path"',
    "cat": "sed -n '{first},{last}p' -- \"$path\"",
    "grep": 'grep -rnIE --exclude-dir=.git -e {pattern} -- "$path" || echo "no line matches"',
}


@dataclass(frozen=True)
class RepositoryCommand:
    """One parsed command of a model's reply."""

    name: str
    words: tuple[str, ...] = ()
    diff: str = ""
    """The diff to apply before ``test``."""
    wrong: str = ""
    """The syntax error, as a sentence; empty if there is none."""


def command_in(reply: str) -> RepositoryCommand | None:
    """Parse the command on the first line of a reply; return ``None`` if that line is no command."""
    first, _, rest = reply.strip().removeprefix("$ ").partition("\n")
    name = first.split(maxsplit=1)[0] if first.split() else ""
    if name not in NAMES:
        return None
    try:
        words = tuple(shlex.split(first)[1:])
    except ValueError as error:
        return RepositoryCommand(name, wrong=f"that line cannot be read ({error})")
    least, most = _WORD_COUNTS[name]
    if not least <= len(words) <= most or any("\0" in word for word in words):
        return RepositoryCommand(name, wrong=f"{name} does not take {len(words)} words")
    if name == "test" and any(word.startswith("-") for word in words):
        return RepositoryCommand(name, wrong="test takes paths alone, and none that begins with '-'")
    if name == "cat" and len(words) == 2 and not _LINES.fullmatch(words[1]):
        return RepositoryCommand(name, wrong="lines are given like 10-40")
    return RepositoryCommand(name, words, diff_in(rest) if name == "test" else "")


def run_command(
    instance: Instance, command: RepositoryCommand, trial: Trial, opened: EpisodeWorkspace
) -> str:
    """Run a command in the workspace that ``opened`` retains for the episode; return its output or an error sentence.

    If the workspace fails, raise one of :data:`~envweave_gym.swebench.evaluation.LOSSES`.
    """
    if command.wrong:
        return f"{command.wrong}; there is {USAGE}"
    if command.name == "test":
        return _run_tests(instance, command, trial, opened)
    with slot(trial.at_once, _SLOT_TIMEOUT_S, of="look"), ExitStack() as stack:
        workspace = stack.enter_context(closing(opened.open(instance, trial)))
        ran = workspace.run(_shell_line(workspace, command), _READ_TIMEOUT_S)
        if ran.timed_out:
            return f"that took more than {_READ_TIMEOUT_S:g} s"
        stack.pop_all()  # do not close it
        opened.put_back(workspace)
    return ran.output[:MAX_OUTPUT_CHARS] or "(nothing)"


def _shell_line(workspace: Workspace, command: RepositoryCommand) -> str:
    """Return the bash script of ``ls``, ``cat`` or ``grep``, with every word of the model quoted."""
    pattern, path = "", command.words[0] if command.words else "."
    if command.name == "grep":
        pattern, path = command.words[0], command.words[1] if len(command.words) == 2 else "."
    lines = _LINES.fullmatch(command.words[1]) if command.name == "cat" and len(command.words) == 2 else None
    line = _COMMANDS[command.name].format(
        first=lines[1] if lines else 1, last=lines[2] if lines else "$", pattern=shlex.quote(pattern)
    )
    return _READ.format(
        testbed=shlex.quote(workspace.testbed), path=shlex.quote(path), command=line, most=MAX_OUTPUT_CHARS
    )


def _run_tests(instance: Instance, command: RepositoryCommand, trial: Trial, opened: EpisodeWorkspace) -> str:
    """Apply the diff below a ``test`` command, run the tests it names, and return their output.

    ``opened`` opens the workspace of the episode, or takes it from the cache. It is closed afterwards, because tests
    may change files.
    """
    diff = parse_diff(command.diff[: MAX_CHARS + 1])
    if refused := [rule for rule in violations(command.diff, diff, instance) if rule != NO_DIFF]:
        return _refused(refused)
    with slot(trial.at_once), closing(opened.open(instance, trial)) as workspace:
        if diff.changes:
            applied = apply_patch(workspace, diff)
            if not applied.command:
                return f"the diff does not apply:\n{applied.log[-MAX_OUTPUT_CHARS:]}"
            if hidden := violations_of_tree(applied.touched, diff, instance):
                return _refused(hidden)
        script = workspace.adapt_script(_visible_script(instance, command.words))
        workspace.write("look.sh", script.encode())
        ran = workspace.run(f"exec bash {workspace.scratch}/look.sh 2>&1", trial.timeout)
    output = ran.output.rpartition(START)[2].lstrip("'\n")[-MAX_OUTPUT_CHARS:]
    if ran.timed_out:
        return f"{output}\nthe tests did not end within {trial.timeout:g} s"
    return output or "(nothing)"


def _refused(sentences: Sequence[str]) -> str:
    return f"the diff is refused: {'; '.join(sentences)}"


def _visible_script(instance: Instance, paths: Sequence[str]) -> str:
    """Return the official script without the test patch, and with a test command for the tests in ``paths``.

    The names of the hidden test files are removed from the command, as they would reveal which file is wrong.
    """
    before, _, after = instance.eval_script.partition(f": '{START}'\n")
    setup = before.partition(f"\ngit checkout {instance.base_commit}")[0]
    command = after.partition(f": '{END}'")[0].strip()
    hidden = " ".join(selected(instance.repo, instance.test_files))
    command = command.removesuffix(hidden).rstrip()
    selection = " ".join(map(shlex.quote, selected(instance.repo, paths)))
    return f'{setup}\nset +x\necho "{START}"\n{command} {selection}\n'

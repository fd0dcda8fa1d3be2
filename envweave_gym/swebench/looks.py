"""Looks at a repository before a patch is final: a small language, and how it is done in a workspace.

``ls PATH``, ``cat PATH [from-to]`` and ``grep PATTERN PATH`` read; ``test PATH …`` runs the tests of the
repository that are there, with a diff below it if there is one. What reads leaves nothing changed; a place
that was tested in is not used again.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

from envweave_gym.data.swebench_lite import Instance
from envweave_gym.data.swebench_scripts import selected
from envweave_gym.swebench.diffs import LONGEST, parsed
from envweave_gym.swebench.evaluation import Trial
from envweave_gym.swebench.grading import END, START
from envweave_gym.swebench.kept import Place
from envweave_gym.swebench.phases import apply_patch
from envweave_gym.swebench.policy import NO_DIFF, violations, violations_of_tree
from envweave_gym.swebench.replies import diff_in
from envweave_gym.swebench.slots import turn
from envweave_gym.swebench.workspace import Workspace

LONGEST_LOOK = 16_000
"""Characters of an output that are retained: the first ones, of tests the last ones."""
USAGE = (
    "ls PATH | cat PATH [FROM-TO] | grep PATTERN PATH | test [PATH …], with a diff below it or none; "
    "paths are those of the repository"
)
NAMES = ("ls", "cat", "grep", "test")
_WORDS = {"ls": (0, 1), "cat": (1, 2), "grep": (1, 2), "test": (0, 32)}
_LINES = re.compile(r"(\d{1,9})-(\d{1,9})")
_LOOKING = 30.0
_PATIENCE = 600.0
"""Seconds that a look at files waits for a slot."""
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
class Look:
    """The file, folder or pattern to show."""

    name: str
    words: tuple[str, ...] = ()
    diff: str = ""
    """What ``test`` is to be run with."""
    wrong: str = ""
    """Why it cannot be shown, in a sentence."""


def look_in(reply: str) -> Look | None:
    """The look that a reply asks for on its first line; None where it asks for none."""
    first, _, rest = reply.strip().removeprefix("$ ").partition("\n")
    name = first.split(maxsplit=1)[0] if first.split() else ""
    if name not in NAMES:
        return None
    try:
        words = tuple(shlex.split(first)[1:])
    except ValueError as error:
        return Look(name, wrong=f"that line cannot be read ({error})")
    least, most = _WORDS[name]
    if not least <= len(words) <= most or any("\0" in word for word in words):
        return Look(name, wrong=f"{name} does not take {len(words)} words")
    if name == "test" and any(word.startswith("-") for word in words):
        return Look(name, wrong="test takes paths alone, and none that begins with '-'")
    if name == "cat" and len(words) == 2 and not _LINES.fullmatch(words[1]):
        return Look(name, wrong="lines are given like 10-40")
    return Look(name, words, diff_in(rest) if name == "test" else "")


def look_at(instance: Instance, look: Look, trial: Trial, place: Place) -> str:
    """What a look shows at a place, which stays as it was; one that has been tested in is given up.

    Where the place is lost one of :data:`~envweave_gym.swebench.evaluation.LOSSES` is raised.
    """
    if look.wrong:
        return f"{look.wrong}; there is {USAGE}"
    if look.name == "test":
        return _tested(instance, look, trial, place)
    with turn(trial.at_once, _PATIENCE, of="look"), ExitStack() as stack:
        workspace = stack.enter_context(closing(place.taken(instance, trial)))
        ran = workspace.run(_reading(workspace, look), _LOOKING)
        if ran.timed_out:
            return f"that took more than {_LOOKING:g} s"
        stack.pop_all()
        place.keep(workspace)
    return ran.output[:LONGEST_LOOK] or "(nothing)"


def _reading(workspace: Workspace, look: Look) -> str:
    pattern, path = "", look.words[0] if look.words else "."
    if look.name == "grep":
        pattern, path = look.words[0], look.words[1] if len(look.words) == 2 else "."
    lines = _LINES.fullmatch(look.words[1]) if look.name == "cat" and len(look.words) == 2 else None
    command = _COMMANDS[look.name].format(
        first=lines[1] if lines else 1, last=lines[2] if lines else "$", pattern=shlex.quote(pattern)
    )
    return _READ.format(
        testbed=shlex.quote(workspace.testbed), path=shlex.quote(path), command=command, most=LONGEST_LOOK
    )


def _tested(instance: Instance, look: Look, trial: Trial, place: Place) -> str:
    diff = parsed(look.diff[: LONGEST + 1])
    if refused := [why for why in violations(look.diff, diff, instance) if why != NO_DIFF]:
        return _refused(refused)
    with turn(trial.at_once), closing(place.taken(instance, trial)) as workspace:
        if diff.changes:
            applied = apply_patch(workspace, diff)
            if not applied.command:
                return f"the diff does not apply:\n{applied.log[-LONGEST_LOOK:]}"
            if hidden := violations_of_tree(applied.touched, diff, instance):
                return _refused(hidden)
        script = workspace.adapted(_visible_script(instance, look.words))
        workspace.write("look.sh", script.encode())
        ran = workspace.run(f"exec bash {workspace.scratch}/look.sh 2>&1", trial.timeout)
    output = ran.output.rpartition(START)[2].lstrip("'\n")[-LONGEST_LOOK:]
    if ran.timed_out:
        return f"{output}\nthe tests did not end within {trial.timeout:g} s"
    return output or "(nothing)"


def _refused(sentences: Sequence[str]) -> str:
    return f"the diff is refused: {'; '.join(sentences)}"


def _visible_script(instance: Instance, paths: Sequence[str]) -> str:
    """The official script up to the test patch, and its test command on other tests.

    Which tests the hidden patch changes gives away which file is wrong, so they are left out of the command.
    """
    before, _, after = instance.eval_script.partition(f": '{START}'\n")
    setup = before.partition(f"\ngit checkout {instance.base_commit}")[0]
    command = after.partition(f": '{END}'")[0].strip()
    hidden = " ".join(selected(instance.repo, instance.test_files))
    command = command.removesuffix(hidden).rstrip()
    selection = " ".join(map(shlex.quote, selected(instance.repo, paths)))
    return f'{setup}\nset +x\necho "{START}"\n{command} {selection}\n'

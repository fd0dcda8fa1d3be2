"""What is done in a workspace, wherever it is: the patch of a model is applied, and the official script run.

Both are one command each, as every command costs a container a tenth of a second.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from envweave_gym.data.swebench_lite import Instance
from envweave_gym.swebench.diffs import Diff, in_crlf, parsed
from envweave_gym.swebench.workspace import Ran, Workspace, WorkspaceLost

APPLY_COMMANDS = (
    "git apply --verbose",
    "git apply --verbose --3way",
    "git apply --verbose --reject",
    "patch --batch --forward --fuzz=5 -p1 -i",
)
"""The official ones, in the order in which they are tried."""
ALREADY = "git apply --check --reverse"
"""What then tells that the patch is in the tree though each of them complained."""
_APPLY_TIMEOUT = 120.0
_FIRST, _NOT_APPLIED = 10, 9
_APPLY = """\
cd {testbed}
git config --global --add safe.directory {testbed}
git ls-files --others -z | sort -z > {scratch}/before
again=
attempt() {{
    if [ "$again" ]; then git checkout -- . ; git clean -fd; fi >> {scratch}/apply.log 2>&1
    again=yes
    "$@" >> {scratch}/apply.log 2>&1
}}
found() {{
    git diff --name-only --no-renames -z HEAD
    git ls-files --others -z | sort -z | comm -z -13 {scratch}/before -
    printf '\\0'
    tail -c 4000 {scratch}/apply.log
    exit "$1"
}}
try() {{
{attempts}
    if {already} "$1" >> {scratch}/apply.log 2>&1; then found {last}; fi
}}
try {scratch}/patch.diff
if [ -e {scratch}/crlf.diff ] && grep -qU $'\\r' -- {files} 2> {scratch}/grep.log; then
    try {scratch}/crlf.diff
fi
tail -c 4000 {scratch}/apply.log
exit {not_applied}
"""
_TEST = """\
cd {testbed}
{reset}
exec bash {scratch}/eval.sh 2>&1
"""
_END_MARKER, _EXIT_CODE = ">>>>> End Test Output", "SWEBENCH_TEST_EXIT_CODE"


@dataclass(frozen=True)
class Applied:
    """What became of a patch."""

    command: str
    """The official command that took it; empty where none did."""
    touched: tuple[str, ...]
    """The files that are no longer what they were, as git sees it."""
    log: str


def apply_patch(workspace: Workspace, diff: Diff) -> Applied:
    """Try the official commands in turn, until one takes the patch."""
    workspace.write("patch.diff", diff.text.encode())
    if (other := in_crlf(diff)) is not None:
        workspace.write("crlf.diff", other.encode())
    workspace.write("apply.sh", _apply_script(workspace, diff).encode())
    ran = workspace.run(f"bash {workspace.scratch}/apply.sh", _APPLY_TIMEOUT)
    if ran.code == _NOT_APPLIED or ran.timed_out:
        return Applied("", (), ran.output)
    commands = (*APPLY_COMMANDS, ALREADY)
    if not 0 <= ran.code - _FIRST < len(commands):
        raise WorkspaceLost(f"the patch could not even be tried (exit code {ran.code}): {ran.output[-500:]}")
    names, _, log = ran.output.partition("\0\0")
    return Applied(commands[ran.code - _FIRST], tuple(name for name in names.split("\0") if name), log)


def _apply_script(workspace: Workspace, diff: Diff) -> str:
    attempts = (
        f'    if attempt {command} "$1"; then found {_FIRST + number}; fi'
        for number, command in enumerate(APPLY_COMMANDS)
    )
    return _APPLY.format(
        testbed=workspace.testbed,
        scratch=workspace.scratch,
        attempts="\n".join(attempts),
        already=ALREADY,
        last=_FIRST + len(APPLY_COMMANDS),
        files=" ".join(map(shlex.quote, diff.paths)),
        not_applied=_NOT_APPLIED,
    )


def run_tests(workspace: Workspace, instance: Instance, timeout: float) -> Ran:
    """Put the files of the test patch back to what they were at the base commit, and run the official script.

    The script does so itself, but where the test patch adds a file its ``git checkout`` fails as a whole.
    """
    workspace.write("eval.sh", workspace.adapted(official_script(instance)).encode())
    script = _TEST.format(
        testbed=workspace.testbed, scratch=workspace.scratch, reset=_reset(instance).rstrip()
    )
    workspace.write("test.sh", script.encode())
    return workspace.run(f"exec bash {workspace.scratch}/test.sh", timeout)


def _reset(instance: Instance) -> str:
    changes = parsed(instance.test_patch).changes
    kept = [shlex.quote(one.old) for one in changes if one.old]
    added = [shlex.quote(one.new) for one in changes if one.new and one.new != one.old]
    lines = f"rm -rf -- {' '.join(added)}\n" if added else ""
    return lines + (f"git checkout -q {instance.base_commit} -- {' '.join(kept)}\n" if kept else "")


def official_script(instance: Instance) -> str:
    """The evaluation script, which also says with which exit code the tests ended."""
    lines: list[str] = []
    for line in instance.eval_script.strip().split("\n"):
        if _END_MARKER in line and f"{_EXIT_CODE}=$?" not in lines:
            lines += [f"{_EXIT_CODE}=$?", line, f'echo ">>>>> Test Exit Code: ${_EXIT_CODE}"']
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"

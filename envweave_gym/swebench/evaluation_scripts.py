"""The shell scripts of an evaluation: apply the patch of a model, then run the official evaluation script.

Both are sent as one command, because starting a command in a container takes a tenth of a second.
"""

from __future__ import annotations

import secrets
import shlex
from dataclasses import dataclass, replace

from envweave_gym.data.swebench_lite import Instance
from envweave_gym.swebench.diffs import Diff, in_crlf, parse_diff
from envweave_gym.swebench.workspace import Ran, Workspace, WorkspaceLost

BY_PATCH = "patch --batch --forward --fuzz=5 -p1 -i"
APPLY_COMMANDS = (
    "git apply --verbose",
    "git apply --verbose --3way",
    "git apply --verbose --reject",
    BY_PATCH,
)
"""The commands by which the official harness applies a patch, in its order."""
ALREADY = "git apply --check --reverse"
"""A command that succeeds if the tree has the patch already, although each of those failed."""
_APPLY_TIMEOUT_S = 120.0
_DIGEST_CHARS = 42
"""Length of a SHA-1 in hex and two spaces, as ``sha1sum`` prints before each path."""
# `differing` lists each path that differs from HEAD, with its digest. The list from before the patch is subtracted
# at the end (comm -13), because files of an image may differ already. Paths end in NUL, as git names may have
# newlines; symbolic links are hashed by their target, which sha1sum would follow.
_ATTEMPTS = """\
exec 2>&1
begun=$EPOCHREALTIME
cd {testbed}
git config --global --add safe.directory {testbed}
differing() {{
    local names plain=() name
    mapfile -d '' -t names < <(
        git -c core.fileMode=false diff --name-only --no-renames -z HEAD
        git ls-files --others -z
    )
    {{
        for name in "${{names[@]}}"; do
            if [ -f "$name" ] && [ ! -L "$name" ]; then
                plain+=("$name")
            else
                printf '%.40s  %s\\0' "$(readlink -- "$name" | sha1sum)" "$name"
            fi
        done
        [ "${{#plain[@]}}" = 0 ] || printf '%s\\0' "${{plain[@]}}" | xargs -0 sha1sum -z -- 2> /dev/null
    }} | sort -zu
}}
differing > {scratch}/before
attempt() {{
    if [ "$again" ]; then git checkout -- . ; git clean -fd; fi
    again=yes
    "$@"
}}
try() {{
    {attempts}
    {already} "$1" && {{ taken={last}; return; }}
    return 1
}}
more() {{
    [ -e {scratch}/crlf.diff ] && grep -qU $'\\r' -- {files} && try {scratch}/crlf.diff
}}
{{ try {scratch}/patch.diff || more; }} > {scratch}/apply.log 2>&1
end() {{ printf '\\000{boundary}\\000'; }}
printf '%s %s %s' "${{taken:--1}}" "$begun" "$EPOCHREALTIME"; end
differing | comm -z -13 {scratch}/before -; end
tail -c 4000 {scratch}/apply.log | tr -d '\\000'; end
[ "$taken" ] || exit 0
"""
_TEST = """\
exec 2>&1
cd {testbed}
{reset}
exec bash {scratch}/eval.sh
"""
_END_MARKER, _EXIT_CODE = ">>>>> End Test Output", "SWEBENCH_TEST_EXIT_CODE"


@dataclass(frozen=True)
class Applied:
    """The result of trying to apply a patch."""

    command: str
    """The command that applied it, one of :data:`APPLY_COMMANDS` or :data:`ALREADY`; empty if none did."""
    touched: tuple[str, ...] = ()
    """The paths of the files that have changed, according to git."""
    log: str = ""
    """The output of the commands."""
    seconds: float = 0.0


def apply_patch(workspace: Workspace, diff: Diff) -> Applied:
    """Try the commands of the official harness in turn, until one applies the patch; run no tests."""
    return _attempted(workspace, diff, "", _APPLY_TIMEOUT_S)[0]


def run_tests(workspace: Workspace, instance: Instance, timeout: float) -> Ran:
    """Restore the files of the test patch to the base commit, and run the official script.

    The script would restore them too, but if the test patch adds a file its ``git checkout`` fails as a whole.
    """
    workspace.write("try.sh", _test_script(workspace, instance).encode())
    return workspace.run(f"exec bash {workspace.scratch}/try.sh", timeout)


def apply_and_test(
    workspace: Workspace, instance: Instance, diff: Diff, timeout: float
) -> tuple[Applied, Ran]:
    """Apply a patch and run the tests, in one command; if the patch does not apply, the tests do not run.

    ``timeout`` is the limit of both together, in seconds.
    """
    return _attempted(workspace, diff, _test_script(workspace, instance), timeout)


def _attempted(workspace: Workspace, diff: Diff, then: str, timeout: float) -> tuple[Applied, Ran]:
    workspace.write("patch.diff", diff.text.encode())
    if (other := in_crlf(diff)) is not None:
        workspace.write("crlf.diff", other.encode())
    boundary = secrets.token_hex(16)  # nothing that a patch prints can imitate it
    workspace.write("try.sh", (_attempts(workspace, diff, boundary) + then).encode())
    ran = workspace.run(f"exec bash {workspace.scratch}/try.sh", timeout)
    outcome, *parts = ran.output.split(f"\0{boundary}\0", 3)
    if len(parts) < 3:
        if ran.timed_out:
            return Applied("", log=ran.output), ran
        raise WorkspaceLost(f"the patch could not even be tried (exit code {ran.code}): {ran.output[-500:]}")
    names, log, output = parts
    number, *times = outcome.rpartition("\n")[2].split(" ")
    command = (*APPLY_COMMANDS, ALREADY)[int(number)] if number != "-1" else ""
    touched = tuple(entry[_DIGEST_CHARS:] for entry in names.split("\0") if entry)
    return Applied(command, touched, log, _seconds(times)), replace(ran, output=output)


def _seconds(times: list[str]) -> float:
    """Return the seconds between two values of Bash's EPOCHREALTIME; 0.0 in Bash before 5.0, where it is empty."""
    begun, ended = (time.replace(",", ".") for time in times)
    return float(ended) - float(begun) if begun and ended else 0.0


def _attempts(workspace: Workspace, diff: Diff, boundary: str) -> str:
    attempts = (
        f'attempt {command} "$1" && {{ taken={number}; return; }}'
        for number, command in enumerate(APPLY_COMMANDS)
    )
    return _ATTEMPTS.format(
        testbed=workspace.testbed,
        scratch=workspace.scratch,
        attempts="\n    ".join(attempts),
        already=ALREADY,
        last=len(APPLY_COMMANDS),
        files=" ".join(map(shlex.quote, diff.paths)),
        boundary=boundary,
    )


def _test_script(workspace: Workspace, instance: Instance) -> str:
    workspace.write("eval.sh", workspace.adapt_script(official_script(instance)).encode())
    return _TEST.format(testbed=workspace.testbed, scratch=workspace.scratch, reset=_reset(instance).rstrip())


def _reset(instance: Instance) -> str:
    changes = parse_diff(instance.test_patch).changes
    kept = [shlex.quote(one.old) for one in changes if one.old]
    added = [shlex.quote(one.new) for one in changes if one.new and one.new != one.old]
    lines = f"rm -rf -- {' '.join(added)}\n" if added else ""
    return lines + (f"git checkout -q {instance.base_commit} -- {' '.join(kept)}\n" if kept else "")


def official_script(instance: Instance) -> str:
    """Return the instance's evaluation script with a line that prints the exit code of the tests.

    The official harness adds the same line.
    """
    lines: list[str] = []
    for line in instance.eval_script.strip().split("\n"):
        if _END_MARKER in line and f"{_EXIT_CODE}=$?" not in lines:
            lines += [f"{_EXIT_CODE}=$?", line, f'echo ">>>>> Test Exit Code: ${_EXIT_CODE}"']
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"

"""Running programs that a model wrote: each in a process of its own, with limits.

The limits (processor time, wall time, memory, file size, open files, no child processes, no
sockets, an empty environment and an empty folder) guard against accidents: endless loops, full
memory, stray files. They are no wall against hostile code: for that, run the whole evaluation in a
container or a virtual machine.
"""

import contextlib
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from fractionate.statistics import pass_at_k

_GUARD = """
import contextlib, os, resource, socket, sys
seconds, size, token = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
del sys.argv[1:]
program = sys.stdin.read()
class Refused(socket.socket):
    def __init__(self, *args, **kwargs):
        raise OSError("a measured program has no network")
socket.socket = Refused
answer, nowhere = os.dup(1), os.open(os.devnull, os.O_RDWR)
for stream in (0, 1, 2):
    os.dup2(nowhere, stream)
limits = {"CPU": seconds, "AS": size, "FSIZE": 1 << 20, "NOFILE": 32, "NPROC": 0, "CORE": 0}
for name, most in limits.items():
    with contextlib.suppress(AttributeError, ValueError, OSError):  # not on every system
        resource.setrlimit(getattr(resource, "RLIMIT_" + name), (most, most))
exec(compile(program, "program", "exec"), {"__name__": "__main__"})
os.write(answer, token.encode())
"""


@dataclass(frozen=True)
class ProgramLimits:
    """What one program may use.

    Attributes:
        seconds: Of processor time; twice as much of wall time.
        memory: Bytes of address space, the interpreter included.
    """

    seconds: int = 4
    memory: int = 1 << 30


def passes(program: str, limits: ProgramLimits) -> bool:
    """Whether a Python program runs to its end without an exception, within the limits.

    Leaving early (`sys.exit`, `os._exit`) does not pass: the end must be reached.
    """
    token = secrets.token_hex(16)
    arguments = [str(limits.seconds), str(limits.memory), token]
    with tempfile.TemporaryDirectory() as folder:
        try:
            ended = subprocess.run(
                [sys.executable, "-I", "-X", "utf8", "-c", _GUARD, *arguments],
                input=program.encode(errors="replace"),
                capture_output=True,
                cwd=folder,
                env={},
                timeout=2 * limits.seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
    return ended.returncode == 0 and ended.stdout == token.encode()


@final
class LimitedCodeEval:
    """Takes the place of the metric "code_eval" of Hugging Face's evaluate, with limits.

    That metric is fetched from the hub, wants HF_ALLOW_CODE_EVAL in the environment of the whole
    process, and limits neither memory nor sockets. The verdict is the same: a candidate passes if
    it and its test run without an exception.
    """

    def __init__(self, limits: ProgramLimits) -> None:
        """Bind the limits of every program."""
        self._limits = limits

    def compute(
        self, *, references: Sequence[str], predictions: Sequence[Sequence[str]], k: Sequence[int]
    ) -> tuple[dict[str, float], list[list[bool]]]:
        """Unbiased pass@k, mean over problems, and the verdict on every candidate.

        Args:
            references: A test per problem.
            predictions: Candidate programs per problem.
            k: Values of k; those above the number of candidates are left out.
        """
        verdicts = [
            [passes(f"{candidate}\n{test}", self._limits) for candidate in candidates]
            for test, candidates in zip(references, predictions, strict=True)
        ]
        n = np.array([len(row) for row in verdicts])
        c = np.array([sum(row) for row in verdicts])
        kept = [size for size in k if size <= n.min()]
        return {f"pass@{size}": float(np.mean(pass_at_k(n, c, size))) for size in kept}, verdicts


@contextlib.contextmanager
def limited_code_eval(limits: ProgramLimits) -> Iterator[None]:
    """Inside, `evaluate.load("code_eval")` gives the limited metric; benchmarks load it by name."""
    import evaluate

    original = evaluate.load

    def load(path: str, *arguments: Any, **named: Any) -> Any:
        own = path == "code_eval"
        return LimitedCodeEval(limits) if own else original(path, *arguments, **named)

    evaluate.load = load
    try:
        yield
    finally:
        evaluate.load = original

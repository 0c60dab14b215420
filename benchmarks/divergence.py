"""Exact divergence, forward and backward: ours against TRL's, a plain loss, and the products alone.

All form the gradients of the same weighted sum for the student's hidden states and head. `products`
is the four matrix products that nobody can avoid, in float32 and by blocks that stay in cache.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.common import MIB, Settings, extra_memory, interleave, parser, settings_of, spread
from benchmarks.results import Row, Section, Table, duration, figure, finish, ratio_row
from fractionate.losses import linear_divergence

WIDTH = 256
TARGETS = {256: (2.5, None), 128_256: (2.3, 4.0)}
"""Must and aim against TRL's kernel, by vocabulary."""
MEMORY_TARGETS = {128_256: (270.0, 160.0)}
BETAS = {"forward": 0.0, "reverse": 1.0}
_MANY = 20_000_000  # logits from which on a repeat takes seconds


@dataclass(frozen=True)
class Problem:
    """Both laws at some positions, and the weight of each.

    Attributes:
        student: Hidden states `[N, H]` and head `[V, H]`, both trained.
        teacher: The same of the teacher.
        weights: `[N]`.
        kind: "forward" or "reverse".
    """

    student: tuple[Tensor, Tensor]
    teacher: tuple[Tensor, Tensor]
    weights: Tensor
    kind: str

    def backward(self, loss: Tensor) -> None:
        """Form the gradients and drop them."""
        loss.backward()
        for leaf in self.student:
            leaf.grad = None

    def logits(self) -> tuple[Tensor, Tensor]:
        """Whole logits of student and teacher."""
        with torch.no_grad():
            teacher = self.teacher[0] @ self.teacher[1].T
        return self.student[0] @ self.student[1].T, teacher


def problem(tokens: int, vocab: int, kind: str, dtype: str, device: str) -> Problem:
    """Random laws, the same for everybody."""
    generator = torch.Generator(device).manual_seed(0)

    def draw(rows: int, scale: float) -> Tensor:
        drawn = torch.randn(rows, WIDTH, generator=generator, device=device)
        return drawn.mul_(scale).to(getattr(torch, dtype))

    student = draw(tokens, 1.0).requires_grad_(), draw(vocab, WIDTH**-0.5).requires_grad_()
    teacher = draw(tokens, 1.0), draw(vocab, WIDTH**-0.5)
    return Problem(student, teacher, torch.full((tokens,), 1 / tokens, device=device), kind)


def _plain(given: Problem) -> None:
    student, teacher = (logits.float().log_softmax(-1) for logits in given.logits())
    if given.kind == "forward":
        per_token = (teacher.exp() * (teacher - student)).sum(-1)
    else:
        per_token = (student.exp() * (student - teacher)).sum(-1)
    given.backward((per_token * given.weights).sum())


def _gkd(given: Problem) -> None:
    from trl.experimental.gkd import GKDTrainer

    student, teacher = given.logits()
    beta = BETAS[given.kind]
    loss = GKDTrainer.generalized_jsd_loss(student[None], teacher[None], beta=beta)
    given.backward(loss)


def _trl(given: Problem) -> None:
    from trl.kernels.chunked_divergence import ChunkedDivergenceFunction

    laws = (*given.student, None, *given.teacher, None)
    per_token, _ = ChunkedDivergenceFunction.apply(*laws, BETAS[given.kind])
    given.backward((per_token * given.weights).sum())


def _ours(given: Problem, gemm_dtype: torch.dtype | None = None) -> None:
    loss = linear_divergence(
        student_hidden=given.student[0],
        student_head=given.student[1],
        teacher_hidden=given.teacher[0],
        teacher_head=given.teacher[1],
        kind=given.kind,
        token_weights=given.weights,
        gemm_dtype=gemm_dtype,
    )
    assert isinstance(loss, Tensor)
    given.backward(loss)


def _ours_bf16(given: Problem) -> None:
    _ours(given, torch.bfloat16)


@torch.no_grad()
def _products(given: Problem) -> None:
    (hidden, head), (teacher_hidden, teacher_head) = given.student, given.teacher
    for rows, teacher_rows in zip(hidden.split(128), teacher_hidden.split(128), strict=True):
        for block, teacher_block in zip(head.split(1024), teacher_head.split(1024), strict=True):
            logits = rows @ block.T
            torch.mm(teacher_rows, teacher_block.T)
            torch.mm(logits, block)
            torch.mm(logits.T, rows)


VARIANTS: dict[str, Callable[[Problem], None]] = {
    "plain log_softmax": _plain,
    "TRL GKD": _gkd,
    "TRL": _trl,
    "ours": _ours,
    "ours, bf16 products": _ours_bf16,
    "products": _products,
}


def prepare(
    variant: str, tokens: int, vocab: int, kind: str, dtype: str, device: str
) -> Callable[[], object]:
    """What one variant does, after it has done it once on a tiny problem."""
    VARIANTS[variant](problem(4, 16, kind, dtype, device))
    given = problem(tokens, vocab, kind, dtype, device)
    return lambda: VARIANTS[variant](given)


def run(settings: Settings, flags: argparse.Namespace) -> Section:
    """Time and memory at every vocabulary."""
    rows: list[Row] = []
    tables: list[Table] = []
    for vocab in [64] if settings.quick else flags.vocab:
        tokens = 32 if settings.quick else flags.tokens
        found = _one(settings, flags, tokens, vocab)
        rows += found[0]
        tables.append(found[1])
    return Section(
        name="divergence",
        title="Exact divergence, forward and backward",
        command="python -m benchmarks.divergence",
        rows=tuple(rows),
        tables=tuple(tables),
    )


def _one(
    settings: Settings, flags: argparse.Namespace, tokens: int, vocab: int
) -> tuple[list[Row], Table]:
    about = tokens, vocab, flags.kind, flags.dtype, settings.device
    given = problem(*about)
    timed = {name: (lambda name=name: VARIANTS[name](given)) for name in flags.variants}
    many = tokens * vocab > _MANY
    repeats = settings.repeats if many or settings.quick else 6 * settings.repeats
    warmup = min(settings.warmup, 1) if many else settings.warmup
    timings = interleave(timed, repeats=repeats, warmup=warmup, device=settings.device)
    memory = {
        name: extra_memory(prepare, name, *about, device=settings.device, threads=settings.threads)
        / MIB
        for name in flags.variants
        if name != "products"
    }
    where = f"{flags.kind} KL, N {tokens:,}, V {vocab:,}, {flags.dtype}"
    rows: list[Row] = []
    peers = [name for name in ("TRL", "plain log_softmax") if name in timed and "ours" in timed]
    for peer in peers:
        must, aim = TARGETS.get(vocab, (None, None)) if peer == "TRL" else (None, None)
        if peer != "TRL" and vocab <= 256:
            must = 1.0
        rows.append(ratio_row(where, timings, peer=peer, must=must, aim=aim))
    if "ours" in memory and "TRL" in memory:
        must, aim = MEMORY_TARGETS.get(vocab, (None, None))
        used = [f"{figure(memory[name])} MiB" for name in ("ours", "TRL")]
        rows.append(
            Row(
                f"{where}: extra memory",
                ours=used[0],
                peer=f"TRL {used[1]}",
                measured=spread([memory["ours"]]),
                must=must,
                aim=aim,
                at_most=True,
                unit="MiB",
            )
        )
    cells = []
    for name in flags.variants:
        took = timings.of(name)
        ratios = [
            figure(timings.ratio(peer, name).median) if peer in timed else "-"
            for peer in ("TRL", "plain log_softmax")
        ]
        size = figure(memory[name]) if name in memory else "-"
        between = f"{duration(took.low)} - {duration(took.high)}"
        cells.append([name, duration(took.median), between, *ratios, size])
    columns = ["", "median", "quartiles", "TRL / this", "plain / this", "extra MiB"]
    return rows, Table(where, columns, cells)


def main() -> None:
    """Read the flags, run and print."""
    flags = parser((__doc__ or "").split("\n")[0])
    flags.add_argument("--vocab", type=int, nargs="+", default=[256, 49_152, 128_256])
    flags.add_argument("--tokens", type=int, default=1024, help="positions")
    flags.add_argument("--kind", default="forward", choices=sorted(BETAS))
    flags.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    flags.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    arguments = flags.parse_args()
    settings = settings_of(arguments)
    started = time.perf_counter()
    finish(run(settings, arguments), settings, started)


if __name__ == "__main__":
    main()

"""What arXiv 2609.35259 published of each claim, as the report prints it beside ours.

Values are those of the paper's text and tables; most of its cell values exist only inside figures,
and such claims can be compared by direction only ("figure only").
"""

from collections.abc import Mapping
from dataclasses import dataclass

PAPER = "arXiv 2609.35259"
FIGURE_ONLY = "figure only: direction, no number"


@dataclass(frozen=True)
class Published:
    """One claim of the paper.

    Attributes:
        statement: What it says, in one sentence.
        value: The printed value, or that only a figure shows it.
        where: Section, figure or table of the paper.
        scope: What the statement covers and what it does not.
    """

    statement: str
    value: str
    where: str
    scope: str


_MEAN = "Llama-3.2-1B, mean of three tasks, 3 seeds, 150 steps, rates 1e-5 and 5e-5"
_SWEEP = "Llama-3.2-1B, Countdown-3, six rates from 1e-5 to 6e-5, 3 seeds"
_SPECTRUM = "Llama-3.2-1B, Countdown-3, both models sampled at temperature 1"

_RLVR = (
    "GRPO on Countdown-4 from 8 configurations x 3 seeds, 300 updates; training reward, no "
    "held-out evaluation"
)
_SWAP = "Llama-3.2-1B, MedReason, 600 answers per cell; the other six cells move by up to 23.3 pp"
_TRAP = "Llama-3.2-1B, Science and MedReason, student rollouts, forward KL, rate 1e-5"

CLAIMS: Mapping[str, Published] = {
    "C1": Published(
        "The best accuracy is the same with student and with teacher rollouts.",
        "73 % − 72 % = 1 pp",
        "§4.2",
        _MEAN + "; holds for the mean of tasks, single tasks differ by up to 7 pp",
    ),
    "C2": Published(
        "Forward KL is insensitive to rollout policy and learning rate.",
        "71–73 % over four cells",
        "§4.2",
        _MEAN + "; not on every task: MedReason falls from 67.0 to 55.7 % between the rates",
    ),
    "C3": Published(
        "Reverse KL is sensitive to rollout policy and learning rate.",
        "35–72 % over four cells",
        "§4.2",
        _MEAN,
    ),
    "C4": Published(
        "The low rate preserves prior abilities.",
        "|change| ≤ 1.3 pp in every cell",
        "§4.2",
        _MEAN + "; seven benchmarks",
    ),
    "C5": Published(
        "The high rate forgets.",
        "drop of 11.2–14.0 pp",
        "§4.2",
        _MEAN + "; seven benchmarks",
    ),
    "C6": Published(
        "For forgetting, the rate outweighs the rollout policy.",
        "rate gap ≥ 9.9 pp, rollout spread ≤ 2.8 pp",
        "§4.2",
        _MEAN,
    ),
    "C7": Published(
        "The learning rate sets update sparsity.",
        "85.3–89.6 % at the low rate, 51.9–60.0 % at the high rate",
        "§4.2",
        _MEAN + "; rounding of bfloat16 weights alone predicts such levels",
    ),
    "C8": Published(
        "Teacher rollouts give updates at least as sparse as student rollouts.",
        "4 of 4 matched pairs",
        "§4.2",
        _MEAN,
    ),
    "C9": Published(
        "Sparsity falls about linearly with the rate.", "“approximately linear”", "fig 2", _SWEEP
    ),
    "C10": Published("Forgetting grows with the rate.", FIGURE_ONLY, "fig 2", _SWEEP),
    "C11": Published(
        "At a matched rate teacher rollouts forget less.",
        "nearly every matched pair",
        "§4.2",
        _SWEEP,
    ),
    "C12": Published(
        "Most forgetting happens early.", "most within 50 of 150 steps", "fig 19", _MEAN
    ),
    "C13": Published(
        "Forward KL is flat along the rollout spectrum.",
        "range 5.2 pp at the low rate",
        "§5.2",
        _SPECTRUM,
    ),
    "C14": Published(
        "Reverse KL prefers student-favoured rollouts at the low rate.",
        FIGURE_ONLY,
        "§5.2",
        _SPECTRUM,
    ),
    "C15": Published(
        "The rollout spectrum barely moves forgetting and sparsity, the rate does.",
        FIGURE_ONLY,
        "§5.2",
        _SPECTRUM,
    ),
    "C16": Published(
        "At equal pass@1 forward KL has the higher pass@10.",
        FIGURE_ONLY,
        "§5.3",
        _SPECTRUM + ", λ > 0, rate 1e-5; 10 samples per item, temperature 1",
    ),
    "C17": Published(
        "Student-favoured rollouts help on the harder task.",
        "10–15 pp at the low rate",
        "§5.3",
        _SPECTRUM + "; Countdown-4E at temperature 0.5, pass@1 and pass@10",
    ),
    "C18": Published(
        "That head start does not survive RLVR.",
        "two configurations that start near 0 % end highest",
        "§5.3",
        _RLVR,
    ),
    "C19": Published(
        "RLVR from reverse-KL students of the low rate collapses.",
        FIGURE_ONLY,
        "fig 6",
        _RLVR,
    ),
    "C20": Published(
        "Gradient clipping acts at every step.",
        "100 % of steps with norm > 1",
        "fig 7",
        "clipped Countdown-3 runs; the paper's text says “most” steps, its caption “every”",
    ),
    "C21": Published(
        "Reverse-KL gradients are larger and spikier.", FIGURE_ONLY, "fig 7", "Countdown-3"
    ),
    "C22": Published(
        "Without clipping reverse KL degrades at larger rates, forward KL does not.",
        FIGURE_ONLY,
        "A.1",
        "Llama-3.2-1B, Countdown-3, rates 1e-5 to 5e-5; seeds not stated",
    ),
    "C23": Published(
        "A sampled KL gives the same picture.",
        FIGURE_ONLY,
        "A.2",
        "Llama-3.2-1B, Countdown-3, one auxiliary token per position, 3 seeds",
    ),
    "C24": Published(
        "With long traces student rollouts and reverse KL at the low rate win; the rate rules on.",
        "59.0 of 53.3–59.0 (base 53.1); skills 41.4 → 33.7–35.9; sparsity 92–93 and 63–70 %",
        "A.3",
        "Qwen2.5, Numina-MATH to MATH-500, 1,000 steps, one run per cell, peaks over trajectories",
    ),
    "C25": Published(
        "Only student rollouts under reverse KL resist a transfer of style.",
        FIGURE_ONLY,
        "A.11",
        "Qwen2.5, Spanish-conditioned teacher, one run per cell, 1,000 judged responses each",
    ),
    "C26": Published(
        "Forward KL at the low rate is insensitive to the sampling temperature.",
        "−0.3 pp (student), −0.2 pp (teacher)",
        "A.12",
        _SWAP,
    ),
    "C27": Published(
        "The best reachable accuracy does not depend on the sampling temperature.",
        "student 69.3 / 67.5 %, teacher 68.2 / 68.0 %",
        "A.12",
        _SWAP,
    ),
    "C28": Published(
        "A small divergence can hide high entropies.",
        "near ln V in steps 10–20",
        "A.10",
        _TRAP + "; the printed 12 nats exceed the ceiling of 11.76",
    ),
    "C29": Published(
        "The ability is there, but not at temperature 1.",
        "sharp drop from 0.7 to 1; both entropies above 7 nats",
        "fig 22f",
        _TRAP + ", seed 42, step 50, 20 prompts",
    ),
    "C30": Published(
        "The early checkpoint is already useful.",
        "Science 37 % (−1.3 pp), MedReason 56 % (−0.8 pp)",
        "A.10",
        _TRAP + ", step 50",
    ),
    "C31": Published(
        "Teacher and student start apart on student rollouts.",
        "student ≈ 80 %, teacher ≈ 20 % mean token likelihood",
        "A.9",
        "step 0 of student-rollout runs, both at temperature 1",
    ),
    "C32": Published(
        "Under student rollouts and forward KL the student's confidence dips, then recovers.",
        FIGURE_ONLY,
        "A.9",
        _MEAN,
    ),
    "C33": Published(
        "In the second family, at the high rate, student-favoured rollouts forget more.",
        FIGURE_ONLY,
        "A.5",
        "Qwen2.5-1.5B, Countdown-3, rate 5e-5, seed 42; less monotone under reverse KL",
    ),
    "C34": Published(
        "In the second family the low rate raises prior abilities.",
        FIGURE_ONLY,
        "fig 14a",
        "Qwen2.5-1.5B, mean of three tasks, rate 1e-5",
    ),
    "C35": Published(
        "The sparsity threshold does not change the picture.",
        FIGURE_ONLY,
        "A.7",
        "thresholds 1e-6 and 1e-8",
    ),
    "C36": Published(
        "Forgetting has a profile over benchmarks.",
        "losses on MMLU-Pro, HumanEval, IFEval, EQ-Bench; gains on TruthfulQA, BBQ",
        "A.6",
        _MEAN + ", rate 5e-5; ToxiGen is not mentioned",
    ),
    "C37": Published(
        "Forward-KL updates under two rollout policies differ by at most 2√2·B·TV.",
        "theorem C.1",
        "C.2",
        "one update; says nothing about final models, and nothing where TV is near 1",
    ),
    "C38": Published(
        "Reverse-KL updates have no such bound; a bounded log-ratio range restores one.",
        "ε(√2/8)·log((1−δ)/δ); 2·B·R·TV",
        "C.3, C.4",
        "one update; sharper constants exist",
    ),
    "C39": Published(
        "Gradient spikes of reverse KL follow extreme log-ratio ranges.",
        "predicted by the theory, not run by the authors",
        "C.4",
        "reverse-KL runs",
    ),
    "C40": Published(
        "Published SFT used larger rates than published RL.",
        "5e-6 / 5e-7 = 10 (medians)",
        "table 6",
        "13 public checkpoints, 12 with a disclosed rate; one printed rate is wrong",
    ),
}
"""The 40 claims, by number."""

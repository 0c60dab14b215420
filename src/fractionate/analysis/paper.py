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
    "C20": Published(
        "Gradient clipping acts at every step.",
        "100 % of steps with norm > 1",
        "fig 7",
        "clipped Countdown-3 runs; the paper's text says “most” steps, its caption “every”",
    ),
    "C21": Published(
        "Reverse-KL gradients are larger and spikier.", FIGURE_ONLY, "fig 7", "Countdown-3"
    ),
    "C31": Published(
        "Teacher and student start apart on student rollouts.",
        "student ≈ 80 %, teacher ≈ 20 % mean token likelihood",
        "A.9",
        "step 0 of student-rollout runs, both at temperature 1",
    ),
    "C35": Published(
        "The sparsity threshold does not change the picture.",
        FIGURE_ONLY,
        "A.7",
        "thresholds 1e-6 and 1e-8",
    ),
    "C39": Published(
        "Gradient spikes of reverse KL follow extreme log-ratio ranges.",
        "predicted by the theory, not run by the authors",
        "C.4",
        "reverse-KL runs",
    ),
}
"""Claims that a rollout x KL x rate study, a rate sweep or a spectrum can test."""

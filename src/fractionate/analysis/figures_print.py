"""The paper's figures 1 to 26, redrawn from records: matplotlib, vector files, nothing global."""
# pyright: basic
# matplotlib's annotations are partial, so strict checking of this file would check its guesses.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from fractionate.analysis import print_curves as curves
from fractionate.analysis import print_final as final
from fractionate.analysis.designs import Design, designs
from fractionate.analysis.print_kit import NotDrawn
from fractionate.analysis.runs import Runs

Draw = Callable[[Sequence[Design]], Figure]

_GRID = "student and teacher rollouts"
_SECOND = "a grid with a second family of models (E13)"


FIGURES: Mapping[str, tuple[str, Draw]] = {
    "fig01": ("accuracy, what was kept, sparsity", final.main),
    "fig02": ("outcomes against the learning rate", final.sweep),
    "fig03": ("outcomes along the rollout spectrum", final.spectrum),
    "fig04": ("likelihood of rollouts along the spectrum", curves.spectrum_likelihoods),
    "fig05": ("coverage along the spectrum, low rate", final.coverage_low),
    "fig06": ("RLVR reward, low rate", curves.rewards),
    "fig07": ("gradient norms before clipping", curves.gradients),
    "fig08": ("outcomes against the rate without clipping", final.unclipped),
    "fig09": ("the main figure with sampled KL", final.sampled),
    "fig10": ("the main figure with long traces, last step", final.long_traces),
    "fig11": ("long traces over training", curves.trajectory),
    "fig12": ("coverage along the spectrum, high rate", final.coverage_high),
    "fig13": (
        "accuracy with a second family", final.only("accuracy", lacks=_SECOND, second=True)
    ),
    "fig14": ("forgetting and sparsity with a second family", final.second_change),
    "fig15": ("the spectrum with a second family", final.second_spectrum),
    "fig16": ("coverage with a second family", final.coverage_second),
    "fig17": ("change per benchmark or skill", final.profile),
    "fig18": ("sparsity at 1e-8", final.only("sparsity@1e-08", lacks=_GRID)),
    "fig19": ("learning curves", curves.learning),
    "fig20": ("accuracy by task", final.only("accuracy", lacks=_GRID)),
    "fig21": ("likelihood of rollouts over training", curves.likelihoods),
    "fig22": ("the entropy trap", curves.trap),
    "fig23": ("the entropy trap, second task", curves.second_trap),
    "fig24": ("responses in the teacher's style", final.style),
    "fig25": ("accuracy at swapped sampling temperatures", final.swap),
    "fig26": ("RLVR reward, high rate", curves.rewards_high),
}  # fmt: skip
"""What each figure of the paper shows, and how it is drawn from designs."""


@dataclass(frozen=True)
class Saved:
    """What was drawn.

    Attributes:
        paths: The files written, by figure.
        absent: Why the other figures were not drawn, by name.
    """

    paths: tuple[Path, ...]
    absent: Mapping[str, str]


def save_figures(
    studies: Runs | Sequence[Runs], folder: str | Path, *, formats: tuple[str, ...] = ("pdf",)
) -> Saved:
    """Draw the paper's figures from our records.

    Each is drawn from the design that is closest to the paper's; its title says which figure it is
    and whose runs it shows.

    Args:
        studies: One study, or several.
        folder: Where to write; made if needed.
        formats: File endings that matplotlib knows, e.g. "pdf", "svg", "png".

    Raises:
        OSError: The folder cannot be written.
    """
    shelf = designs((studies,) if isinstance(studies, Runs) else studies)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    absent: dict[str, str] = {}
    for name, (what, draw) in FIGURES.items():
        try:
            for ending in formats:
                # A figure is laid out anew when it is saved, so each format gets its own.
                figure = draw(shelf)
                figure.suptitle(_title(name, what, str(figure.get_label())), fontsize=8)
                written.append(_saved(figure, target / f"{name}.{ending}", ending))
        except NotDrawn as reason:
            absent[name] = str(reason)
    return Saved(tuple(written), absent)


def _title(name: str, what: str, study: str) -> str:
    whose = f" ({study})" if study else ""
    return f"Figure {int(name.removeprefix('fig'))} of the paper, redrawn{whose}: {what}"


def _saved(figure: Figure, path: Path, ending: str) -> Path:
    # Without date and random ids, the same records give the same bytes.
    stamp = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(ending, {})
    with rc_context({"svg.hashsalt": path.stem}):
        figure.savefig(path, bbox_inches="tight", dpi=200, metadata=stamp)
    return path

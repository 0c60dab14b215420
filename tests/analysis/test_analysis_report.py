import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from planted import RATE, ROLLOUT, planted, scored, study

from fractionate.analysis.answer import answer, show_interval
from fractionate.analysis.attribution import attribute
from fractionate.analysis.background import Background, Example
from fractionate.analysis.figures_final import main_figure
from fractionate.analysis.report import render_report, script_json
from fractionate.analysis.runs import Runs, gather
from fractionate.analysis.tables import attribution_table
from fractionate.records import CellResult, EvalRecord

PLANTED = "<script>alert('planted')</script>"


class Outline(HTMLParser):
    """Elements, ids, outside addresses and the text of a page, scripts left out."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.scripts += tag == "script"
        for name, value in attrs:
            if name == "id" and value:
                self.ids.append(value)
            if name in ("src", "href") and value and not value.startswith("#"):
                self.addresses.append(value)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.text.append(data)


def outline(html: str) -> Outline:
    parser = Outline()
    parser.feed(html)
    return parser


def words(html: str) -> str:
    return re.sub(r"\s+", " ", " ".join(outline(html).text))


@pytest.fixture(scope="module")
def html(rate_runs: Runs) -> str:
    cells = [run.cell for run in rate_runs.runs]
    declared = {
        "outcome": "accuracy",
        "factor": ROLLOUT,
        "treatment": "student",
        "control": "teacher",
        "equivalence_margin": 0.03,
    }
    runs = gather(cells, study=study(hypotheses=[declared]))
    background = Background(
        plan_key="0123abcd",
        hypotheses_hash="4567ef",
        notes=("The preflight warns of nothing.",),
        teacher=cells[0].evaluations[150],
        examples=(Example("student-forward", "cd 7 7 1 : 56 =", PLANTED, "right"),),
        provenance={"runs": [{"packages": {"torch": "2.13"}}], "seconds": 1.5},
    )
    return render_report(runs, background)


def test_the_report_reaches_nothing_outside(html: str):
    assert outline(html).addresses == []


def test_every_section_is_there(html: str):
    sections = "answer knobs figures rollouts hypotheses claims cells confounds cost examples"
    sections += " caveats provenance"
    assert set(sections.split()) <= set(outline(html).ids)


def test_every_link_inside_leads_somewhere(html: str):
    ids = outline(html).ids
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', html)) <= set(ids)


def test_model_output_is_escaped(html: str):
    assert PLANTED not in html
    assert PLANTED in words(html)


def test_labels_cannot_break_out_of_a_script(rate_runs: Runs):
    evil = "</script><img src=x onerror=alert(1)>"
    cells = planted(factors={ROLLOUT: (evil, "teacher")}, items=5, steps=2)
    page = render_report(gather(cells, study=study()))
    plain = render_report(
        gather(planted(factors={ROLLOUT: ("a", "teacher")}, items=5, steps=2), study=study())
    )
    assert "<img" not in page.replace("<img>", "").split("<script>", maxsplit=1)[0]
    assert outline(page).scripts == outline(plain).scripts


def test_json_in_scripts_holds_no_markup():
    text = script_json({"a": "</script> & \u2028"})
    assert "<" not in text
    assert "&" not in text
    assert text == '{"a": "\\u003c/script\\u003e \\u0026 \\u2028"}'


def test_the_scope_is_said(html: str):
    assert "never for large language models" in words(html)


def test_the_answer_comes_with_intervals(html: str):
    said = words(html)
    assert re.search(r"learning rate explains most of accuracy \(ω² 0\.\d\d \[0\.\d\d,", said)


def test_a_null_study_says_so(null_runs: Runs):
    assert "Which knob explains most of accuracy cannot be told here" in words(
        render_report(null_runs)
    )


def test_untrained_student_and_teacher_stand_in_the_table(html: str):
    said = words(html)
    assert "untrained student" in said
    assert "rounding null" in said


def test_the_temperature_confound_is_named(html: str):
    assert "also changes the sampling temperature" in words(html)


def test_hashes_and_versions_are_shown(html: str):
    said = words(html)
    assert "0123abcd" in said
    assert "runs.1.packages.torch 2.13" in said


def test_an_incomplete_study_says_what_is_missing(rate_runs: Runs):
    cells = [run.cell for run in rate_runs.runs]
    names = [cell.cell for cell in cells]
    runs = gather(cells[:-1], study=study(), expected=names, allow_missing=True)
    said = words(render_report(runs))
    assert f"missing cells: {names[-1]}" in said


def test_a_smoke_run_is_marked(rate_runs: Runs):
    assert "its numbers mean nothing" in words(render_report(rate_runs, Background(smoke=True)))


@pytest.mark.parametrize("factors", [{}, {RATE: "1"}])
def test_a_single_cell_still_makes_a_report(factors: dict[str, str]):
    said = words(render_report(gather([scored(factors, 1, [1, 0, 1])])))
    assert "nothing is varied in this study" in said


def test_one_seed_still_makes_a_report():
    runs = gather(planted(seeds=(42,), items=5, steps=2), study=study())
    assert "one seed" in words(render_report(runs))


def test_rendering_needs_no_torch():
    code = (
        "import fractionate.analysis.report, sys; assert not {'torch', 'pandas'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_a_complete_seed_nothing_is_told():
    cells = planted(items=5, steps=2, seeds=(1,))[:-1]
    said = words(render_report(gather(cells, study=study(), allow_missing=True)))
    assert "Nothing can be told yet: no seed is complete in every arm." in said


def harder_cell(policy: str, seed: int, right: int) -> CellResult:
    """Five or so of eight items right, and none of eight harder ones."""
    cell = scored({ROLLOUT: policy}, seed, [1] * right + [0] * (8 - right))
    harder = tuple(EvalRecord("harder", f"h{i}", 0.5, 1, 0, 0, 0, 0, 40) for i in range(8))
    return replace(cell, evaluations={150: (*cell.evaluations[150], *harder)})


def test_a_floor_is_said_beside_the_teacher():
    cells = [harder_cell(p, s, 5 + s) for p in ("student", "teacher") for s in (0, 1)]
    able = tuple(EvalRecord("harder", f"h{i}", 0.5, 1, int(i < 6), 0, 0, 0, 40) for i in range(8))
    said = words(render_report(gather(cells), Background(teacher=able)))
    assert "Harder task is at the floor: no student solves any (the teacher model: 75.0 %)." in said
    assert "at the floor: no student solves any" in said
    assert "teacher model" in said


def test_the_items_of_this_study_are_counted():
    cells = [scored({ROLLOUT: p}, s, [1, 1, 1, 0]) for p in ("student", "teacher") for s in (0, 1)]
    said = words(render_report(gather(cells)))
    assert "with 4 of them a single run at 75.0 %, the mean here, has a standard error" in said
    assert "of up to 21.7 pp from the items alone" in said
    solved = [scored({ROLLOUT: p}, s, [1, 1]) for p in ("student", "teacher") for s in (0, 1)]
    assert "rule of three" in words(render_report(gather(solved)))


def test_the_answer_speaks_in_labels():
    cells = planted(seeds=(42, 43), items=5, steps=2)
    kept = [
        replace(cell, evaluations={150: (*cell.evaluations[150],), 0: cell.evaluations[150]})
        for cell in cells
    ]
    said = answer(gather(kept, study=study())).sentences[1]
    assert "most of forgetting cannot be told here: it is the same in every run" in said
    assert "skills_drop" not in said


def test_a_swing_of_zero_has_no_better_level():
    counts = {"student": (5, 6), "teacher": (6, 5)}
    cells = [
        scored({ROLLOUT: policy}, seed, [1] * n + [0] * (8 - n))
        for policy, row in counts.items()
        for seed, n in enumerate(row)
    ]
    table = attribution_table({"accuracy": attribute(gather(cells), "accuracy")})
    assert table.rows[0].cells[-1] == "–"


def test_intervals_of_shares_end_at_one_hundred_points():
    assert show_interval("accuracy", -1.7, 2.5) == "[−100.0,\N{NO-BREAK SPACE}+100.0]"
    assert show_interval("kl_to_base", -1.7, 2.5) == "[−1.7,\N{NO-BREAK SPACE}+2.5]"


def test_captions_name_the_interval_that_is_drawn(rate_runs: Runs):
    one = gather(planted(seeds=(42,), items=5, steps=2), study=study())
    assert "intervals over their items" in main_figure(one).caption
    assert "means over seeds" in main_figure(rate_runs).caption

"""Plans: what is shared, what a key depends on, and in which order stages stand."""

import json
import pickle
import subprocess
import sys

import pytest
from fakes import MODEL, make_checkpoints, make_study, make_tree
from hypothesis import given, settings
from hypothesis import strategies as st

from fractionate.config import StudyFileError
from fractionate.config.files import parse_study
from fractionate.study.keys import STAGE_VERSIONS
from fractionate.study.plan import make_plan


@pytest.fixture
def plan_of(tmp_path):
    return lambda **changes: make_plan(make_study(tmp_path / "models", **changes))


def keys(plan, kind):
    return {stage.key for stage in plan.of_kind(kind)}


def test_a_plan_has_every_stage_once_and_shares_what_can_be_shared(plan_of):
    plan = plan_of()
    counts = {kind: n for kind in STAGE_VERSIONS if (n := len(plan.of_kind(kind)))}
    assert counts == {
        "student_base": 2,
        "teacher": 1,
        "preflight": 1,
        "base_evaluation": 2,
        "teacher_evaluation": 1,
        "corpus": 2,
        "cell": 8,
        "cell_evaluation": 8,
    }
    assert len({stage.key for stage in plan.stages}) == len(plan.stages)


def test_parents_come_first_and_shared_stages_before_cells(plan_of):
    seen: set[str] = set()
    kinds = []
    for stage in plan_of().stages:
        assert seen.issuperset(stage.needs)
        seen.add(stage.key)
        kinds.append(stage.kind in ("cell", "cell_evaluation"))
    assert kinds == sorted(kinds)


def test_off_policy_cells_of_a_seed_share_one_corpus(plan_of):
    plan = plan_of()
    read = {}
    for cell in plan.cells:
        corpus = plan.cell_stages[cell.name].corpus
        if cell.factors["method.rollout"] == "teacher":
            read.setdefault(cell.seed, set()).add(corpus)
            assert corpus in plan.stage(plan.cell_stages[cell.name].training).parents
        else:
            assert corpus is None
    assert {seed: len(corpora) for seed, corpora in read.items()} == {42: 1, 43: 1}
    assert read[42] != read[43]


def test_a_study_without_cached_teacher_rollouts_has_no_corpus(plan_of):
    fresh = plan_of(vary={"rollout": [{"kind": "student"}, {"kind": "teacher", "cached": False}]})
    assert fresh.of_kind("corpus") == ()


def test_a_corpus_depends_on_sampling_but_not_on_the_loss(plan_of):
    plain = keys(plan_of(), "corpus")
    assert keys(plan_of(optimizer={"lr": 0.1}), "corpus") == plain
    assert keys(plan_of(vary={"rollout": [{"kind": "teacher"}]}), "corpus") == plain
    assert keys(plan_of(method={"temperature": {"student_loss": 2.0}}), "corpus") == plain
    assert keys(plan_of(method={"temperature": {"teacher_rollout": 0.7}}), "corpus") != plain
    assert keys(plan_of(lengths={"completion": 33}), "corpus") != plain


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"question": "why?"},
        {"evaluate": {"at": [0, "last"], "accuracy": {"items": 7}}},
        {"evaluate": {"at": [4]}},
        {"checkpoints": {"every": 1}},
        {"lengths": {"prompt": 16, "completion": 32, "evaluation": 99, "harder": 98}},
        {"hypotheses": [{"outcome": "accuracy", "factor": "kl", "treatment": "forward",
                         "control": "reverse"}]},
    ],
)  # fmt: skip
def test_cells_do_not_change_with_what_they_do_not_read(plan_of, change):
    assert keys(plan_of(**change), "cell") == keys(plan_of(), "cell")


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": {"eps": 1e-7}},
        {"budget": {"steps": 4, "prompts_per_step": 2, "tokens_per_micro_batch": 64}},
        {"method": {"reduction": "token_mean"}},
        {"diagnostics": {"every": 2}},
        {"prompt_order": "epoch_shuffle"},
        {"task": {"kind": "countdown", "operands": 4}},
        {"evaluate": {"at": [2, "last"]}},
    ],
)
def test_every_cell_changes_with_a_field_it_reads(plan_of, change):
    assert keys(plan_of(**change), "cell").isdisjoint(keys(plan_of(), "cell"))


def test_a_key_covers_defaults(plan_of):
    """A default that changes must not return a stale result: it stands in what is hashed."""
    (cell, *_) = plan_of().of_kind("cell")
    config = cell.identity()["config"]
    assert config["optimizer"]["eps"] == 1e-8
    assert config["method"]["temperature"]["teacher_loss"] == 0.5
    assert config["budget"]["tokens"] is None


def test_writing_a_default_out_changes_no_key(plan_of):
    spelled = plan_of(optimizer={"eps": 1e-8, "lr": 1e-5}, prompt_order="step_draw")
    assert [s.key for s in spelled.stages] == [s.key for s in plan_of().stages]


def test_studies_share_the_cells_they_have_in_common(plan_of):
    small = plan_of(vary={"rollout": [{"kind": "student"}], "kl": [{"kind": "reverse"}]})
    assert keys(small, "cell") < keys(plan_of(), "cell")
    assert keys(small, "cell_evaluation") < keys(plan_of(), "cell_evaluation")


def test_keys_follow_the_content_of_a_checkpoint_and_not_its_place(tmp_path):
    first = make_plan(make_study(tmp_path / "a"))
    elsewhere = make_plan(make_study(tmp_path / "b"))
    assert first.key == elsewhere.key
    (tmp_path / "b" / "teacher-0" / "model.safetensors").write_text("other weights")
    other = make_plan(make_study(tmp_path / "b"))
    assert keys(other, "cell").isdisjoint(keys(first, "cell"))
    assert keys(other, "student_base") == keys(first, "student_base")


def test_keys_follow_device_and_threads(tmp_path):
    study = make_study(tmp_path / "models")
    plain = make_plan(study)
    for other in (make_plan(study, device="cuda"), make_plan(study, threads=2)):
        assert keys(other, "cell").isdisjoint(keys(plain, "cell"))


def test_a_new_version_of_a_kind_changes_it_and_its_descendants(plan_of, monkeypatch):
    before = plan_of()
    monkeypatch.setitem(STAGE_VERSIONS, "corpus", STAGE_VERSIONS["corpus"] + 1)
    after = plan_of()
    assert keys(after, "corpus").isdisjoint(keys(before, "corpus"))
    changed = keys(before, "cell") - keys(after, "cell")
    assert len(changed) == 4  # those that read a corpus
    assert keys(after, "teacher") == keys(before, "teacher")


def test_evaluated_steps_are_kept_and_named_once(plan_of):
    plan = plan_of(evaluate={"at": [0, 2, 4, "last"]})
    stages = plan.cell_stages[plan.cells[0].name]
    assert list(stages.evaluations) == [2, "last"]
    assert plan.stage(stages.training).config["keep"] == [2, "last"]


def test_a_budget_in_tokens_does_not_know_its_last_step(plan_of):
    plan = plan_of(budget={"steps": 4, "tokens": 50}, evaluate={"at": [4, "last"]})
    assert list(plan.cell_stages[plan.cells[0].name].evaluations) == [4, "last"]


def test_kept_checkpoints_stay_beside_the_evaluated_ones(plan_of):
    plan = plan_of(checkpoints={"keep": [3, 1]}, evaluate={"at": [2]})
    (cell, *_) = plan.of_kind("cell")
    assert cell.config["keep"] == [1, 2, 3, "last"]


def test_step_0_is_measured_once_per_base(plan_of):
    plan = plan_of()
    shared = {plan.cell_stages[c.name].base_evaluation: c.base for c in plan.cells}
    assert sorted(shared.values()) == [0, 1]
    assert plan_of(evaluate={"at": ["last"]}).of_kind("base_evaluation") == ()


def test_cells_wait_for_the_preflight_without_depending_on_it(plan_of):
    plan = plan_of()
    (preflight,) = plan.of_kind("preflight")
    for cell in plan.of_kind("cell"):
        assert preflight.key in cell.after
        assert preflight.key not in cell.parents
    assert keys(plan, "cell") <= plan.descendants(preflight.key)


def test_hypotheses_and_margins_are_hashed_into_the_plan(plan_of):
    declared = {"outcome": "accuracy", "factor": "kl", "treatment": "forward", "control": "reverse"}
    plans = [
        plan_of(),
        plan_of(hypotheses=[declared]),
        plan_of(hypotheses=[{**declared, "equivalence_margin": 0.03}]),
        plan_of(hypotheses=[{**declared, "equivalence_margin": 0.04}]),
    ]
    assert len({plan.hypotheses_hash for plan in plans}) == 4
    assert len({plan.key for plan in plans}) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"treatment": "onpolicy"}, r"'onpolicy' is no level of method\.rollout\. Its levels"),
        ({"treatment": "student", "control": "student"}, "both 'student'"),
    ],
)  # fmt: skip
def test_a_hypothesis_about_no_level_is_refused(plan_of, change, message):
    hypothesis = {"outcome": "accuracy", "factor": "rollout", "treatment": "student"}
    hypothesis |= {"control": "teacher", **change}
    with pytest.raises(StudyFileError, match=message):
        plan_of(hypotheses=[hypothesis])


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ({"low": 1e-4, "high": 1e-3}, r"rates\.low: no cell .* 0\.0001\. .*: 0\.0005, 0\.001"),
        ({"low": 1e-3, "high": 5e-4}, r"rates\.low 0\.001 is above rates\.high 0\.0005"),
    ],
)  # fmt: skip
def test_rates_that_no_cell_has_are_refused(plan_of, rates, message):
    with pytest.raises(StudyFileError, match=message):
        plan_of(rates=rates, vary={"lr": [5e-4, 1e-3]})


def test_a_plan_tells_cells_stages_cost_and_confounds(plan_of):
    text = plan_of().describe()
    assert "study fake: 8 cells (2 x 2 x 2)" in text
    assert "2 sets of teacher completions (0 done)" in text
    assert "generated" in text
    assert "confounded: method.rollout 'student' against 'teacher' also changes" in text
    assert "For matched cells: vary method.temperature" in text


def test_a_plan_as_json_holds_every_stage_and_cell(plan_of):
    plan = plan_of()
    told = json.loads(plan.to_json())
    assert [stage["key"] for stage in told["stages"]] == [stage.key for stage in plan.stages]
    assert [cell["name"] for cell in told["cells"]] == [cell.name for cell in plan.cells]
    trained = [s["cost"]["tokens_trained"] for s in told["stages"] if s["kind"] == "cell"]
    assert trained == [4 * 2 * 32] * 8


def test_a_plan_travels_to_another_process(plan_of):
    plan = plan_of()
    copy = pickle.loads(pickle.dumps(plan))
    assert copy.stages == plan.stages
    assert copy.key == plan.key


def test_unpinned_hub_models_are_noted(tmp_path):
    tree = make_tree(tmp_path / "models", vary={})
    del tree["world"]
    tree["models"] = {"student": "Qwen/Qwen2.5-1.5B", "teacher": "Qwen/Qwen2.5-7B",
                      "teacher_revision": "abc"}  # fmt: skip
    plan = make_plan(parse_study(tree))
    assert len(plan.notes) == 1
    assert plan.notes[0].startswith("models.student_revision is not set")


@settings(max_examples=25)
@given(order=st.permutations(["name", "world", "method", "budget", "lengths", "seeds", "evaluate"]))
def test_keys_do_not_depend_on_the_order_of_fields(tmp_path_factory, order):
    folder = tmp_path_factory.getbasetemp() / "plan" / "models"
    tree = make_tree(folder, vary={})
    shuffled = {name: tree[name] for name in order}
    assert make_plan(parse_study(shuffled)).key == make_plan(parse_study(tree)).key


def test_planning_imports_neither_torch_nor_pandas(tmp_path):
    make_checkpoints(tmp_path / "models")
    code = (
        "import sys, json; from fractionate.config.files import parse_study;"
        "from fractionate.study import make_plan, status, Store, parse_executor;"
        "plan = make_plan(parse_study(json.load(sys.stdin))); plan.describe();"
        "status(plan, Store('nowhere')).describe();"
        "print([m for m in ('torch', 'transformers', 'pandas') if m in sys.modules])"
    )
    tree = json.dumps(make_tree(tmp_path / "models"))
    told = subprocess.run(
        [sys.executable, "-c", code], input=tree, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == "[]"


BROKEN_MODELS = {
    "no JSON": ("config.json", "{", "cannot be read as a model configuration"),
    "no object": ("config.json", "[]", "no JSON object"),
    "no heads": (
        "config.json",
        json.dumps({**MODEL, "num_attention_heads": 0}),
        "num_attention_heads is 0",
    ),
    "no weights": ("model.safetensors", None, "no weights"),
}


@pytest.mark.parametrize("case", BROKEN_MODELS)
@pytest.mark.parametrize("role", ["student", "teacher"])
def test_a_broken_model_folder_is_refused_by_its_field(tmp_path, role, case):
    file, content, message = BROKEN_MODELS[case]
    folder = make_checkpoints(tmp_path, ["student", "teacher"])
    if content is None:
        (folder / role / file).unlink()
    else:
        (folder / role / file).write_text(content)
    with pytest.raises(StudyFileError, match=rf"^models\.{role}: .*{message}"):
        make_plan(of_models(folder / "student", folder / "teacher"))


def test_a_broken_gguf_file_is_refused_by_its_field(tmp_path):
    folder = make_checkpoints(tmp_path, ["student"])
    (folder / "teacher.gguf").write_bytes(b"junk")
    with pytest.raises(StudyFileError, match=r"^models\.teacher: .*teacher\.gguf"):
        make_plan(of_models(folder / "student", folder / "teacher.gguf"))


def of_models(student, teacher):
    models = {"student": str(student), "teacher": str(teacher)}
    return parse_study({"name": "pair", "models": models})


def test_what_a_student_already_knows_can_be_a_factor():
    study = parse_study(
        {
            "name": "regimes",
            "world": {"kind": "sandbox", "bases": 1},
            "vary": {"world.students": ["latent", "components"]},
            "seeds": [42, 43],
        }
    )
    plan = make_plan(study)
    assert len(plan.cells) == 4
    bases = {plan.stage(stages.base).name for stages in plan.cell_stages.values()}
    assert bases == {"student base 0", "latent student 0"}

"""Study files: read, overridden, refused with the field and the mend."""

import pytest
import yaml

from fractionate.config import StudyFileError, read_study
from fractionate.config.files import parse_study
from fractionate.config.study import SANDBOX_TEST_PROBLEMS
from fractionate.tasks.sandbox import SandboxCountdown

MINIMAL = {"name": "demo", "world": {"kind": "sandbox"}}
MODELS = {"name": "demo", "models": {"student": "a/small", "teacher": "a/large"}}


def write(tmp_path, tree_or_text):
    path = tmp_path / "study.yaml"
    text = tree_or_text if isinstance(tree_or_text, str) else yaml.safe_dump(tree_or_text)
    path.write_text(text)
    return path


def test_a_minimal_study_has_the_papers_defaults(tmp_path):
    study = read_study(write(tmp_path, MINIMAL))
    temperature = study.method.temperature
    assert (temperature.student_rollout, temperature.teacher_rollout) == (1.0, 0.5)
    assert (temperature.student_loss, temperature.teacher_loss) == (1.0, 0.5)
    assert study.method.reduction == "sequence_mean"
    assert study.optimizer.param_dtype == "bfloat16"
    assert study.seeds == (42, 43, 44)


def test_a_rate_in_scientific_notation_is_a_number(tmp_path):
    """PyYAML reads `3e-4` (without a point) as a string."""
    text = "name: demo\nworld: {kind: sandbox}\noptimizer: {lr: 3e-4}\n"
    assert read_study(write(tmp_path, text)).optimizer.lr == 3e-4


def test_overrides_apply_before_validation(tmp_path):
    path = write(tmp_path, MINIMAL)
    study = read_study(path, ["seeds=[7]", "lr=1e-3", "rollout={kind: teacher}", "budget.steps=3"])
    assert study.seeds == (7,)
    assert study.optimizer.lr == 1e-3
    assert study.method.rollout.kind == "teacher"
    assert study.budget.steps == 3


def test_an_override_without_a_value_is_refused(tmp_path):
    with pytest.raises(StudyFileError, match="override 'seeds': write it as field=value"):
        read_study(write(tmp_path, MINIMAL), ["seeds"])


def test_relative_paths_count_from_the_folder_of_the_study(tmp_path):
    task = {"kind": "table", "path": "rows.jsonl", "prompt": "q", "answer": "a"}
    (tmp_path / "small").mkdir()
    models = {"student": "small", "teacher": "owner/large"}
    study = read_study(write(tmp_path, {"name": "t", "models": models, "task": task}))
    assert study.task.kind == "table"
    assert study.task.path == tmp_path / "rows.jsonl"
    assert study.models is not None
    assert study.models.student == str(tmp_path / "small")
    assert study.models.teacher == "owner/large"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [", "not valid YAML"),
        ("- a\n- b\n", "a study file is a mapping of fields"),
        ("name: a\nname: b\n", "the key 'name' stands twice"),
    ],
)
def test_a_file_that_is_no_study_is_refused(tmp_path, text, message):
    with pytest.raises(StudyFileError, match=message) as error:
        read_study(write(tmp_path, text))
    assert "study.yaml" in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(StudyFileError, match=r"nothing\.yaml: no such file"):
        read_study(tmp_path / "nothing.yaml")


def test_a_folder_is_no_study_file(tmp_path):
    with pytest.raises(StudyFileError, match="cannot be read"):
        read_study(tmp_path)


REFUSALS = {
    "misspelt key": ({"sedes": [1]}, r"sedes: unknown field\. Did you mean 'seeds'\?"),
    "misspelt nested key": (
        {"optimizer": {"warmpu": 3}},
        r"optimizer\.warmpu: unknown field\. Did you mean 'warmup'\?",
    ),
    "unknown kind": (
        {"method": {"rollout": {"kind": "onpolicy"}}},
        r"method\.rollout\.kind: unknown kind 'onpolicy'\. Kinds: .*'student'",
    ),
    "kind left out": (
        {"method": {"rollout": {"lam": 0.5}}},
        r"method\.rollout\.kind: this field is required",
    ),
    "wrong type": ({"budget": {"steps": "many"}}, r"budget\.steps: .*\(given: 'many'\)"),
    "required field": (
        {"method": {"rollout": {"kind": "spectrum"}}},
        r"method\.rollout\.lam: this field is required",
    ),
    "beyond the range": (
        {"method": {"rollout": {"kind": "spectrum", "lam": 2.5}}},
        r"method\.rollout\.lam: .*less than or equal to 2",
    ),
    "infinite": ({"optimizer": {"lr": float("inf")}}, r"optimizer\.lr: .*finite"),
    "no seed": ({"seeds": []}, "seeds is empty. List at least one seed"),
    "seed twice": ({"seeds": [1, 1]}, "repeats a seed"),
    "no pair": ({"world": None}, "exactly one of 'world' .* and 'models'"),
    "two pairs": ({"models": MODELS["models"]}, "exactly one of 'world' .* and 'models'"),
    "sandbox task": ({"task": {"kind": "countdown", "operands": 5}}, "knows 3 and 4"),
    "sandbox numbers": (
        {"task": {"kind": "countdown", "numbers": [1, 2]}},
        "poses its own Countdown problems",
    ),
    "sandbox harder": ({"evaluate": {"harder": {"operands": 6}}}, r"evaluate\.harder: the sandbox"),
    "unknown factor": (
        {"vary": {"method.rolout": [1]}},
        r"vary\.method\.rolout: there is no field 'method\.rolout'",
    ),
    "factor outside the method": (
        {"vary": {"evaluate.skill_items": [1]}},
        "fields of method, optimizer or budget",
    ),
    "factor twice": ({"vary": {"lr": [1], "optimizer.lr": [1]}}, "twice. Remove one"),
    "no level": ({"vary": {"lr": []}}, r"vary\.lr has no level"),
    "evaluated too late": (
        {"evaluate": {"at": [151]}},
        r"evaluate\.at \[151\] lies beyond budget\.steps 150",
    ),
    "kept too late": ({"checkpoints": {"keep": [151]}}, r"checkpoints\.keep \[151\] lies beyond"),
    "pass@k without samples": (
        {"evaluate": {"coverage": {"samples": 4, "k": [8]}}},
        r"coverage\.k 8 is larger than coverage\.samples 4",
    ),
    "hypothesis about no factor": (
        {"hypotheses": [{"outcome": "accuracy", "factor": "lr", "treatment": "1", "control": "2"}]},
        r"hypotheses\[0\] speaks of 'lr', which this study does not vary",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_makes_no_sense_is_refused_by_field(case):
    change, message = REFUSALS[case]
    with pytest.raises(StudyFileError, match=message):
        parse_study({**MINIMAL, **change})


MODEL_REFUSALS = {
    "sandbox skills": ({"evaluate": {"forgetting": "skills"}}, "skills of the sandbox"),
    "teacher is the student": (
        {"models": {"student": "a/small", "teacher": "student"}},
        r"Set models\.teacher_context",
    ),
    "teacher is the same model": (
        {"models": {"student": "a/small", "teacher": "a/small"}},
        r"Set models\.teacher_context",
    ),
    "no prompt column": (
        {"task": {"kind": "table", "path": "x.jsonl", "answer": "a"}},
        "exactly one of 'prompt' and 'messages'",
    ),
    "no gold answers": (
        {"task": {"kind": "table", "path": "x.jsonl", "prompt": "q"}},
        r"name their column in task\.answer, or set task\.grade: none",
    ),
    "no demonstrations": (
        {
            "task": {"kind": "table", "path": "x.jsonl", "prompt": "q", "answer": "a"},
            "vary": {"rollout": [{"kind": "student"}, {"kind": "dataset"}]},
        },
        r"Set task\.completion",
    ),
}


@pytest.mark.parametrize("case", MODEL_REFUSALS)
def test_real_models_are_checked_alike(case):
    change, message = MODEL_REFUSALS[case]
    with pytest.raises(StudyFileError, match=message):
        parse_study({**MODELS, **change})


def test_every_fault_is_reported_at_once():
    with pytest.raises(StudyFileError) as error:
        parse_study({**MINIMAL, "sedes": [1], "budget": {"steps": 0}})
    assert len(str(error.value).splitlines()) == 2


def test_the_source_of_a_fault_is_named():
    with pytest.raises(StudyFileError, match=r"^mine\.yaml: budget\.steps: "):
        parse_study({**MINIMAL, "budget": {"steps": 0}}, source="mine.yaml")


# ---------------------------------------------------------------- more items than there are


TOO_MANY = {
    "accuracy": ({"evaluate": {"accuracy": {"items": 660}}}, "accuracy", 659),
    "coverage": (
        {"task": {"kind": "countdown", "operands": 4}, "evaluate": {"coverage": {"items": 9226}}},
        "coverage",
        9225,
    ),
    "drift": ({"evaluate": {"drift": {"items": 660}}}, "drift", 659),
    "harder": ({"evaluate": {"harder": {"operands": 3, "items": 660}}}, "harder", 659),
}


@pytest.mark.parametrize("case", TOO_MANY)
def test_the_sandbox_has_only_so_many_test_problems(case):
    change, name, held = TOO_MANY[case]
    with pytest.raises(StudyFileError, match=rf"Set evaluate\.{name}\.items: {held}$"):
        parse_study({**MINIMAL, **change})


@pytest.mark.parametrize("operands", [3, 4])
def test_the_sizes_of_the_sandbox_are_those_of_its_splits(operands):
    assert SANDBOX_TEST_PROBLEMS[operands] == len(SandboxCountdown(operands).problems("test"))


@pytest.mark.parametrize(
    "task",
    [
        {"kind": "countdown", "test": 10},
        {"kind": "table", "path": "x.jsonl", "prompt": "q", "answer": "a", "test": 10},
    ],
)
def test_a_task_has_as_many_test_problems_as_it_says(task):
    with pytest.raises(StudyFileError, match=r"evaluate\.accuracy\.items is 11.*raise task\.test"):
        parse_study({**MODELS, "task": task, "evaluate": {"accuracy": {"items": 11}}})


# ---------------------------------------------------------------- how faults and overrides read


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("checkpoints.keep=first", "checkpoints.keep: Input should be 'last', or a list"),
        ("checkpoints.keep=[0]", "checkpoints.keep.0: Input should be greater than 0"),
        ("seeds=7", "seeds: Input should be a list (given: 7)"),
    ],
)
def test_a_value_of_the_wrong_shape_is_one_fault(tmp_path, override, message):
    with pytest.raises(StudyFileError) as error:
        read_study(write(tmp_path, MINIMAL), [override])
    (line,) = str(error.value).splitlines()
    assert message in line


@pytest.mark.parametrize("text", ["name: [", "a: b: c", "name: 2024-13-45", "x: \x01", "x: @a"])
def test_what_is_wrong_with_yaml_fits_a_line(tmp_path, text):
    with pytest.raises(StudyFileError, match="not valid YAML: ") as error:
        read_study(write(tmp_path, text))
    assert len(str(error.value).splitlines()) == 1
    assert "<unicode string>" not in str(error.value)


def test_the_head_of_a_dotted_override_may_be_an_alias(tmp_path):
    study = read_study(write(tmp_path, MINIMAL), ["rollout.kind=teacher", "kl.kind=reverse"])
    assert study.method.rollout.kind == "teacher"
    assert study.method.divergence.kind == "reverse"


@pytest.mark.parametrize("written", ["rollout", "method.rollout", None])
def test_an_override_replaces_the_levels_of_a_factor_whatever_its_name(tmp_path, written):
    vary = {"lr": [1e-3], **({written: [{"kind": "student"}]} if written else {})}
    path = write(tmp_path, {**MINIMAL, "vary": vary})
    study = read_study(path, ["vary.method.rollout=[{kind: teacher}]"])
    assert study.vary == {"lr": (1e-3,), written or "method.rollout": ({"kind": "teacher"},)}

"""Methods: which combinations mean something; labels; round trips."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fractionate.config import Method, Optimizer, Study, StudyFileError, dotted_get, dotted_set
from fractionate.config.files import parse_study
from fractionate.config.parts import CoinRollout, EarlyStopWeighting, SpectrumRollout, TopkSupport

SAMPLED = {"kind": "sampled", "token": "rollout"}
EQUAL = {"student_rollout": 1.0, "student_loss": 1.0}

COMBINATIONS = {
    "rollout token of a teacher": (
        {"rollout": {"kind": "teacher"}, "support": SAMPLED, "divergence": {"kind": "reverse"}},
        r"support\.token 'rollout' .* method\.rollout is 'teacher'.*Use support\.token 'auxiliary'",
    ),
    "rollout token in forward KL": (
        {"support": SAMPLED, "temperature": EQUAL},
        "estimate the reverse KL only.*Use divergence 'reverse'",
    ),
    "sampler and loss disagree": (
        {
            "support": SAMPLED,
            "divergence": {"kind": "reverse"},
            "temperature": {"student_rollout": 0.7},
        },
        r"set temperature\.student_rollout equal to temperature\.student_loss",
    ),
    "nucleus": (
        {"support": SAMPLED, "divergence": {"kind": "reverse"}, "temperature": {"top_p": 0.9}},
        "top_p to 1",
    ),
    "baseline in forward KL": (
        {"support": {"kind": "sampled", "baseline": "exact"}},
        r"support\.baseline 'exact' .* Use baseline 'none'",
    ),
    "baseline of k2": (
        {
            "support": {"kind": "sampled", "baseline": "exact", "estimator": "k2"},
            "divergence": {"kind": "reverse"},
        },
        r"support\.estimator 'k2' has none",
    ),
    "top-k of a mixture": (
        {"support": {"kind": "topk", "k": 4}, "divergence": {"kind": "jsd"}},
        r"method\.support 'topk\(k=4\)' .* not for 'jsd'\. Use support 'full'",
    ),
    "importance weights off policy": (
        {"weighting": {"kind": "iw_opd"}, "rollout": {"kind": "teacher"}},
        r"method\.weighting 'iw_opd' .* Use rollout 'student'",
    ),
    "importance weights without tokens": (
        {"weighting": {"kind": "iw_opd"}},
        r"needs the rollout's own tokens .*method\.support is 'full'",
    ),
    "early stop under sequence_mean": (
        {"weighting": {"kind": "early_stop"}},
        r"Use reduction 'token_mean' .* or set weighting\.allow_sequence_mean: true",
    ),
    "window of nothing": ({"weighting": {"kind": "window"}}, "exactly one of 'first' and 'last'"),
}


@pytest.mark.parametrize("case", COMBINATIONS)
def test_impossible_combinations_name_both_fields_and_the_mend(case):
    change, message = COMBINATIONS[case]
    with pytest.raises(ValidationError, match=message):
        Method.model_validate(change)


@pytest.mark.parametrize(
    "change",
    [
        {"support": SAMPLED, "divergence": {"kind": "reverse"}, "temperature": EQUAL},
        {"weighting": {"kind": "early_stop"}, "reduction": "token_mean"},
        {"weighting": {"kind": "early_stop", "allow_sequence_mean": True}},
        {"support": {"kind": "topk", "k": 4}, "divergence": {"kind": "reverse"}},
        {
            "weighting": {"kind": "iw_opd"},
            "support": SAMPLED,
            "divergence": {"kind": "reverse"},
            "temperature": EQUAL,
        },
    ],
)
def test_combinations_that_mean_something_are_taken(change):
    assert Method.model_validate(change).model_dump(exclude_unset=True) == change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state_dtype": "float32"}, "Set state_dtype: bfloat16"),
        ({"master_weights": "float32"}, "Set state_dtype: float32"),
        (
            {"param_dtype": "float32", "master_weights": "float32", "state_dtype": "float32"},
            "Use master_weights 'none'",
        ),
        (
            {"param_dtype": "float32", "state_dtype": "float32"},
            "Set compute_dtype: float32",
        ),
        ({"lr": 0}, "greater than 0"),
        ({"betas": [0.9, 1.0]}, "less than 1"),
    ],
)
def test_impossible_precisions_and_rates_are_refused(change, message):
    with pytest.raises(ValidationError, match=message):
        Optimizer.model_validate(change)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"master_weights": "float32", "state_dtype": "float32"},
        {"param_dtype": "float32", "state_dtype": "float32", "compute_dtype": "float32"},
        {"clip": None},
    ],
)
def test_the_three_precisions_are_possible(change):
    assert Optimizer.model_validate(change).model_dump(exclude_unset=True) == change


@pytest.mark.parametrize(
    ("part", "label"),
    [
        (SpectrumRollout(lam=0.5), "spectrum(lam=0.5)"),
        (SpectrumRollout(lam=-1, alpha=0.1), "spectrum(lam=-1, alpha=0.1)"),
        (CoinRollout(), "coin"),
        (TopkSupport(k=100, tail="truncate"), "topk(k=100, tail=truncate)"),
        (EarlyStopWeighting(tokens=50), "early_stop(tokens=50)"),
    ],
)
def test_labels_are_the_kind_and_the_changed_fields(part, label):
    assert part.label == label


def test_a_configuration_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        Method().reduction = "token_mean"  # pyright: ignore[reportAttributeAccessIssue]


def test_setting_a_dotted_path_changes_a_copy():
    tree = {"a": {"b": 1, "c": 2}}
    assert dotted_set(tree, "a.b", 5) == {"a": {"b": 5, "c": 2}}
    assert dotted_set(tree, "x.y", 5)["x"] == {"y": 5}
    assert tree == {"a": {"b": 1, "c": 2}}


def test_a_missing_dotted_path_names_what_is_there():
    with pytest.raises(ValueError, match=r"where: there is no field 'a\.x'\. a has: b, c"):
        dotted_get({"a": {"b": 1, "c": 2}}, "a.x", where="where")


rollouts = st.one_of(
    st.sampled_from([{"kind": "student"}, {"kind": "teacher", "cached": False}, {"kind": "skd"}]),
    st.floats(-2, 2).map(lambda lam: {"kind": "spectrum", "lam": lam}),
    st.floats(0, 1).map(lambda share: {"kind": "coin", "student_share": share}),
    st.integers(0, 99).map(lambda n: {"kind": "handover", "teacher_tokens": n}),
)
divergences = st.one_of(
    st.sampled_from([{"kind": "forward"}, {"kind": "reverse"}]),
    st.floats(0.01, 0.99).map(lambda beta: {"kind": "jsd", "beta": beta}),
    st.floats(0, 1).map(lambda weight: {"kind": "mixed", "reverse_weight": weight}),
    st.floats(0, 9).map(lambda nats: {"kind": "entropy_aware", "threshold": nats}),
)
weightings = st.one_of(
    st.just({"kind": "uniform"}),
    st.floats(0, 1).map(lambda share: {"kind": "window", "last": share}),
    st.integers(1, 9).map(lambda n: {"kind": "skip", "tokens": n}),
)
studies = st.fixed_dictionaries(
    {
        "name": st.just("any"),
        "world": st.fixed_dictionaries({"kind": st.just("sandbox"), "bases": st.integers(1, 9)}),
        "method": st.fixed_dictionaries(
            {
                "rollout": rollouts,
                "divergence": divergences,
                "weighting": weightings,
                "reduction": st.sampled_from(
                    ["sequence_mean", "token_mean", "constant", "sequence_sum"]
                ),
            }
        ),
        "optimizer": st.fixed_dictionaries(
            {"lr": st.floats(1e-9, 1), "clip": st.none() | st.floats(0.1, 10)}
        ),
        "seeds": st.lists(st.integers(0, 2**40), min_size=1, max_size=4, unique=True),
        "vary": st.fixed_dictionaries({"lr": st.lists(st.floats(1e-9, 1), min_size=1, max_size=3)}),
    }
)


@given(studies)
def test_a_study_survives_being_written_and_read(tree):
    study = parse_study(tree)
    assert Study.model_validate(study.model_dump()) == study
    assert Study.model_validate(json.loads(study.model_dump_json())) == study


@given(studies)
def test_an_unknown_field_is_never_ignored(tree):
    for path in ("method.extra", "optimizer.extra", "world.extra", "method.rollout.extra", "extra"):
        with pytest.raises(StudyFileError, match=f"{path}: unknown field"):
            parse_study(dotted_set(tree, path, 1))

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import EXAMPLES
from fractionate.rollouts import spectrum_log_probs
from fractionate.rollouts.laws import (
    coin_sequence_log_probs,
    coin_token_log_probs,
    nucleus_log_probs,
    skd_log_probs,
    teacher_top_k,
)

STUDENT = torch.tensor([0.50, 0.30, 0.15, 0.05], dtype=torch.float64).log()
TEACHER = torch.tensor([0.10, 0.25, 0.05, 0.60], dtype=torch.float64).log()
BOTH = {"student_log_probs": STUDENT, "teacher_log_probs": TEACHER}
MINUS_INFINITY = -math.inf


def close(found: torch.Tensor, expected: object) -> bool:
    wanted = torch.tensor(expected, dtype=torch.float64)
    return torch.allclose(found, wanted, atol=1e-9, rtol=0)


def random_pair(seed: int, scale: float) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    laws = torch.randn(2, 50, 7, generator=generator, dtype=torch.float64) * scale
    return dict(zip(BOTH, laws.log_softmax(-1), strict=True))


@pytest.mark.parametrize("lam", [-2, -1, -0.5, 0, 0.5, 1, 2])
def test_spectrum_worked_numbers(lam: float):
    assert close(spectrum_log_probs(**BOTH, lam=lam).exp(), EXAMPLES[f"lam{lam:g}"])


def test_spectrum_ratio_and_normaliser():
    assert close(STUDENT - TEACHER, EXAMPLES["lam_r"])
    assert close((0.5 * STUDENT + 0.5 * TEACHER).logsumexp(-1), EXAMPLES["lam0_logZ"])


def test_spectrum_without_guards_is_the_plain_extrapolation():
    found = spectrum_log_probs(**BOTH, lam=2, alpha=1e-12, clip=100.0)
    guarded_below = (STUDENT + 0.5 * (STUDENT - TEACHER).clamp(min=0)).log_softmax(-1)
    assert torch.allclose(found, guarded_below)
    naive = (STUDENT + 0.5 * (STUDENT - TEACHER)).log_softmax(-1)
    assert close(naive.exp(), EXAMPLES["lam_naive2"])
    assert not torch.allclose(found, naive)


def test_spectrum_keeps_the_anchor_odds_of_masked_tokens():
    amplified = spectrum_log_probs(**BOTH, lam=2) - STUDENT
    odds = (amplified[:, None] - amplified[None, :]).exp().max()
    assert float(odds) == pytest.approx(EXAMPLES["lam2_odds_amp_max"], abs=1e-9)


def test_spectrum_odds_are_capped_at_three():
    worst = 0.0
    for seed in range(80):
        pair = random_pair(seed, scale=4.0)
        change = spectrum_log_probs(**pair, lam=2) - pair["student_log_probs"]
        worst = max(worst, float((change.amax(-1) - change.amin(-1)).max().exp()))
    assert worst == pytest.approx(EXAMPLES["odds_cap_empirical"], abs=1e-9)


@settings(derandomize=True, deadline=None, max_examples=15)
@given(seed=st.integers(0, 10**6), end=st.sampled_from([-1.0, 1.0]))
def test_spectrum_is_continuous_at_both_ends(seed: int, end: float):
    pair = random_pair(seed, scale=2.0)
    inside = spectrum_log_probs(**pair, lam=end * (1 - 1e-9))
    outside = spectrum_log_probs(**pair, lam=end * (1 + 1e-9))
    assert torch.allclose(inside, outside, atol=1e-6)
    anchor = pair["student_log_probs" if end > 0 else "teacher_log_probs"]
    assert torch.allclose(spectrum_log_probs(**pair, lam=end), anchor, atol=1e-12)


@settings(derandomize=True, deadline=None, max_examples=15)
@given(seed=st.integers(0, 10**6), lam=st.floats(-2, 2))
def test_spectrum_mirrors_when_the_models_swap(seed: int, lam: float):
    pair = random_pair(seed, scale=2.0)
    swapped = {
        "student_log_probs": pair["teacher_log_probs"],
        "teacher_log_probs": pair["student_log_probs"],
    }
    mirrored = spectrum_log_probs(**swapped, lam=-lam)
    assert torch.allclose(spectrum_log_probs(**pair, lam=lam), mirrored, atol=1e-12)


def test_spectrum_drops_the_term_of_a_zero_coefficient():
    impossible = torch.tensor([0.0, MINUS_INFINITY, MINUS_INFINITY, MINUS_INFINITY]).double()
    for lam in (1.0, 1.5, 2.0):
        law = spectrum_log_probs(student_log_probs=STUDENT, teacher_log_probs=impossible, lam=lam)
        assert torch.isfinite(law).all()
    law = spectrum_log_probs(student_log_probs=STUDENT, teacher_log_probs=impossible, lam=1.0)
    assert torch.allclose(law, STUDENT)


def test_spectrum_with_a_token_that_neither_allows_is_no_nan():
    gap = torch.tensor([0.0, 0.0, MINUS_INFINITY, 0.0]).double()
    for lam in (-2.0, -1.0, 0.0, 1.0, 2.0):
        law = spectrum_log_probs(
            student_log_probs=STUDENT + gap, teacher_log_probs=TEACHER + gap, lam=lam
        )
        assert law[2] == MINUS_INFINITY
        assert float(law.exp().sum()) == pytest.approx(1.0)


def test_spectrum_of_disjoint_models_is_refused():
    first = torch.tensor([0.0, MINUS_INFINITY])
    with pytest.raises(ValueError, match="share no possible token"):
        spectrum_log_probs(student_log_probs=first, teacher_log_probs=first.flip(0), lam=0.0)


@pytest.mark.parametrize("lam", [2.1, -3.0, math.nan])
def test_spectrum_beyond_two_is_refused(lam: float):
    with pytest.raises(ValueError, match="from -2 to 2"):
        spectrum_log_probs(**BOTH, lam=lam)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("alpha", -0.1),
        ("alpha", 1.0),
        ("alpha", math.nan),
        ("clip", 0.0),
        ("clip", -1.0),
        ("clip", math.nan),
    ],
)
def test_spectrum_guards_out_of_range_are_refused(argument: str, value: float):
    with pytest.raises(ValueError, match=argument):
        spectrum_log_probs(**BOTH, lam=2, **{argument: value})


def test_spectrum_with_alpha_zero_masks_nothing():
    found = spectrum_log_probs(**BOTH, lam=2, alpha=0)
    assert torch.allclose(found, spectrum_log_probs(**BOTH, lam=2, alpha=1e-12))
    gap = torch.tensor([0.0, 0.0, MINUS_INFINITY, 0.0]).double()
    shared = {name: law + gap for name, law in BOTH.items()}
    assert spectrum_log_probs(**shared, lam=2, alpha=0)[2] == MINUS_INFINITY


def test_spectrum_of_unequal_shapes_is_refused():
    with pytest.raises(ValueError, match=r"student_log_probs \(4,\) and teacher_log_probs \(3,\)"):
        spectrum_log_probs(student_log_probs=STUDENT, teacher_log_probs=TEACHER[:3], lam=0)


@pytest.mark.parametrize("lam", [-2, -1, 0, 1, 2])
def test_spectrum_of_half_precision_is_computed_in_float32(lam: float):
    half = {name: law.bfloat16() for name, law in BOTH.items()}
    found = spectrum_log_probs(**half, lam=lam)
    wide = spectrum_log_probs(**{name: law.float() for name, law in half.items()}, lam=lam)
    assert found.dtype == torch.float32
    assert torch.equal(found, wide)


def test_token_coin_worked_numbers():
    assert close(coin_token_log_probs(**BOTH, student_share=0.5).exp(), EXAMPLES["coin_mix"])
    law = coin_token_log_probs(**BOTH, student_share=0.5)
    assert float(law[3]) == pytest.approx(EXAMPLES["coin_logp_tok3"], abs=1e-9)


@pytest.mark.parametrize(("share", "expected"), [(1.0, STUDENT), (0.0, TEACHER)])
def test_token_coin_without_doubt_is_one_model(share: float, expected: torch.Tensor):
    assert torch.equal(coin_token_log_probs(**BOTH, student_share=share), expected)


# Example B: two tokens, two positions
P = {"": [0.8, 0.2], "0": [0.9, 0.1], "1": [0.3, 0.7]}
Q = {"": [0.4, 0.6], "0": [0.6, 0.4], "1": [0.5, 0.5]}


def example_b(prefix: str) -> dict[str, torch.Tensor]:
    return {
        "student_log_probs": torch.tensor(Q[prefix], dtype=torch.float64).log(),
        "teacher_log_probs": torch.tensor(P[prefix], dtype=torch.float64).log(),
    }


def prefix_log_prob(laws: dict[str, list[float]], prefix: str) -> torch.Tensor:
    value = laws[""][int(prefix)] if prefix else 1.0
    return torch.tensor(value, dtype=torch.float64).log()


def coin_per_sequence(prefix: str) -> torch.Tensor:
    return coin_sequence_log_probs(
        **example_b(prefix),
        student_share=0.5,
        student_prefix_log_prob=prefix_log_prob(Q, prefix),
        teacher_prefix_log_prob=prefix_log_prob(P, prefix),
    )


def coin_per_token(prefix: str) -> torch.Tensor:
    return coin_token_log_probs(**example_b(prefix), student_share=0.5)


@pytest.mark.parametrize(
    ("law", "key"), [(coin_per_token, "mixtok"), (coin_per_sequence, "mixseq")]
)
def test_coins_over_whole_sequences(law, key: str):
    for sequence, expected in EXAMPLES[key].items():
        log_prob = law("")[int(sequence[0])] + law(sequence[0])[int(sequence[1])]
        assert float(log_prob.exp()) == pytest.approx(expected, abs=1e-9)


def test_coins_differ_after_a_prefix():
    assert float(coin_per_sequence("0")[0].exp()) == pytest.approx(EXAMPLES["mix_cond_00"])
    assert float(coin_per_token("0")[0].exp()) == pytest.approx(EXAMPLES["mix_cond_tok_00"])
    weight = 0.5 * 0.4 / (0.5 * 0.4 + 0.5 * 0.8)
    assert weight == pytest.approx(EXAMPLES["mix_post_w0"])


def test_share_outside_the_unit_interval_is_refused():
    with pytest.raises(ValueError, match="student_share"):
        coin_token_log_probs(**BOTH, student_share=1.5)


def test_skd_worked_numbers():
    assert close(skd_log_probs(**BOTH, top_k=2).exp(), EXAMPLES["skd"])
    accepted = STUDENT.exp()[teacher_top_k(TEACHER, 2)].sum()
    assert float(accepted) == pytest.approx(EXAMPLES["skd_acc"], abs=1e-9)


def test_skd_accepting_everything_is_the_student():
    assert torch.allclose(skd_log_probs(**BOTH, top_k=4), STUDENT)


def test_top_k_ties_go_to_the_lowest_id():
    assert teacher_top_k(torch.zeros(5), 2).tolist() == [True, True, False, False, False]


def test_top_k_beyond_the_vocabulary_is_refused():
    with pytest.raises(ValueError, match="vocabulary has 4 tokens"):
        skd_log_probs(**BOTH, top_k=5)


def test_nucleus_worked_numbers():
    law = nucleus_log_probs(STUDENT, top_p=0.9)
    assert close(law.exp(), EXAMPLES["nuc"])
    assert float(law[0]) == pytest.approx(EXAMPLES["nuc_lp0"], abs=1e-9)


def test_nucleus_holds_the_crossing_token_in_any_order():
    order = torch.tensor([3, 1, 0, 2])
    law = nucleus_log_probs(STUDENT[order], top_p=0.6)
    assert (law > MINUS_INFINITY).tolist() == [False, True, True, False]


def test_nucleus_of_one_is_the_whole_law_and_a_tiny_one_the_likeliest_token():
    assert torch.equal(nucleus_log_probs(STUDENT, top_p=1.0), STUDENT)
    assert nucleus_log_probs(STUDENT, top_p=1e-9).tolist() == [0.0, *[MINUS_INFINITY] * 3]


@pytest.mark.parametrize("top_p", [0.0, 1.1])
def test_nucleus_without_mass_is_refused(top_p: float):
    with pytest.raises(ValueError, match="top_p"):
        nucleus_log_probs(STUDENT, top_p=top_p)


@settings(derandomize=True, deadline=None, max_examples=15)
@given(seed=st.integers(0, 10**6), share=st.floats(0, 1), top_k=st.integers(1, 7))
def test_every_law_is_normalised(seed: int, share: float, top_k: int):
    pair = random_pair(seed, scale=3.0)
    laws = [
        coin_token_log_probs(**pair, student_share=share),
        skd_log_probs(**pair, top_k=top_k),
        spectrum_log_probs(**pair, lam=4 * share - 2),
        nucleus_log_probs(pair["student_log_probs"], top_p=max(share, 0.01)),
    ]
    for law in laws:
        assert torch.allclose(law.exp().sum(-1), torch.ones(50, dtype=torch.float64))

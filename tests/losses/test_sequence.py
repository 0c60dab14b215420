"""Token divergences along two-token completions: what they add up to, and what they leave out."""

import itertools

import pytest
import torch

from cases import EXAMPLES
from fractionate.losses import forward_kl, reverse_kl
from fractionate.losses.bounds import total_variation
from losses.laws import law, logit_gradient, numbers

# Next-token laws after the empty prefix, after 0 and after 1.
TEACHER = {"e": law(0.8, 0.2), "0": law(0.9, 0.1), "1": law(0.3, 0.7)}
STUDENT = {"e": law(0.4, 0.6), "0": law(0.6, 0.4), "1": law(0.5, 0.5)}
KL = {"F": forward_kl, "R": reverse_kl}


def sequences(laws):
    return {
        f"{a}{b}": float((laws["e"][a] + laws[str(a)][b]).exp())
        for a, b in itertools.product((0, 1), repeat=2)
    }


def at(kl, prefix):
    return KL[kl](teacher_log_probs=TEACHER[prefix], student_log_probs=STUDENT[prefix])


def gradient(kl, prefix):
    return logit_gradient(KL[kl], STUDENT[prefix], TEACHER[prefix])


def reach(laws):
    """Probability of visiting each prefix."""
    return {"e": 1.0, "0": float(laws["e"][0].exp()), "1": float(laws["e"][1].exp())}


@pytest.mark.parametrize(("laws", "key"), [(TEACHER, "seqP"), (STUDENT, "seqQ")])
def test_worked_sequence_laws(laws, key):
    assert sequences(laws) == pytest.approx(EXAMPLES[key], abs=1e-9)


@pytest.mark.parametrize("kl", ["F", "R"])
@pytest.mark.parametrize("prefix", ["e", "0", "1"])
def test_worked_token_divergences(kl, prefix):
    assert float(at(kl, prefix)) == pytest.approx(EXAMPLES[f"d_{kl}_{prefix}"], abs=1e-9)


@pytest.mark.parametrize("kl", ["F", "R"])
@pytest.mark.parametrize(("laws", "who"), [(TEACHER, "T"), (STUDENT, "S")])
def test_worked_sums_over_visited_prefixes(kl, laws, who):
    total = sum(weight * float(at(kl, prefix)) for prefix, weight in reach(laws).items())
    assert total == pytest.approx(EXAMPLES[f"tok_{who}_{kl}"], abs=1e-9)


@pytest.mark.parametrize(
    ("kl", "whole", "parts"), [("F", "seqF", "tok_T_F"), ("R", "seqR", "tok_S_R")]
)
def test_only_matched_prefixes_give_the_sequence_kl(kl, whole, parts):
    laws = [numbers(list(sequences(side).values())).log() for side in (TEACHER, STUDENT)]
    value = KL[kl](teacher_log_probs=laws[0], student_log_probs=laws[1])
    assert float(value) == pytest.approx(EXAMPLES[whole], abs=1e-9)
    assert EXAMPLES[parts] == pytest.approx(EXAMPLES[whole], abs=1e-9)


def test_the_token_update_leaves_out_the_future_of_earlier_tokens():
    logits = {prefix: values.clone().requires_grad_() for prefix, values in STUDENT.items()}
    q = {prefix: values.log_softmax(-1) for prefix, values in logits.items()}
    reverse = {p: reverse_kl(teacher_log_probs=TEACHER[p], student_log_probs=q[p]) for p in q}
    full = reverse["e"] + q["e"][0].exp() * reverse["0"] + q["e"][1].exp() * reverse["1"]
    gradients = dict(zip(logits, torch.autograd.grad(full, list(logits.values())), strict=True))
    for prefix, weight in reach(STUDENT).items():
        expected = numbers(EXAMPLES[f"fullg_{prefix}"])
        torch.testing.assert_close(gradients[prefix], expected, atol=1e-9, rtol=0)
        token_only = weight * gradient("R", prefix)
        expected = numbers(EXAMPLES[f"semig_{prefix}"])
        torch.testing.assert_close(token_only, expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("kl", ["F", "R"])
def test_worked_updates_under_two_rollout_policies(kl):
    updates = [
        torch.cat([weight * gradient(kl, prefix) / 2 for prefix, weight in reach(laws).items()])
        for laws in (TEACHER, STUDENT)
    ]
    cosine = torch.nn.functional.cosine_similarity(*updates, dim=0)
    got = [float(updates[0].norm()), float(updates[1].norm()), float(cosine)]
    assert got == pytest.approx([EXAMPLES[f"sg_{k}_{kl}"] for k in ("nT", "nS", "cos")], abs=1e-9)
    difference = float((updates[0] - updates[1]).norm())
    assert difference == pytest.approx(EXAMPLES[f"sg_diff_{kl}"], abs=1e-9)
    bound = EXAMPLES["sg_bound_F" if kl == "F" else "sg_bound_R_sharp"]
    assert difference <= bound


def test_worked_total_variations():
    whole = [numbers(list(sequences(side).values())).log() for side in (TEACHER, STUDENT)]
    tv = total_variation(teacher_log_probs=whole[0], student_log_probs=whole[1])
    assert float(tv) == pytest.approx(EXAMPLES["tv_seq"], abs=1e-9)
    telescoped = sum(
        weight * float(total_variation(teacher_log_probs=TEACHER[p], student_log_probs=STUDENT[p]))
        for p, weight in reach(TEACHER).items()
    )
    assert telescoped == pytest.approx(EXAMPLES["tv_tel"], abs=1e-9)
    shares = (whole[0].exp() * (1 - (whole[1] - whole[0]).exp()).clamp(min=0)).sum()
    assert float(shares) == pytest.approx(EXAMPLES["tv_est"], abs=1e-9)


def test_worked_range_of_the_log_ratio_over_prefixes():
    ranges = [
        float((STUDENT[p] - TEACHER[p]).max() - (STUDENT[p] - TEACHER[p]).min()) for p in "e01"
    ]
    assert max(ranges) == pytest.approx(EXAMPLES["sg_Rmax"], abs=1e-9)

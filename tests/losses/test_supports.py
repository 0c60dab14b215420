import math

import pytest
import torch

from cases import BUGS
from fractionate.losses import forward_kl, log_probs, reverse_kl, topk_ids, topk_kl
from losses.laws import law, normal, numbers

KL = {"forward": forward_kl, "reverse": reverse_kl}
every_direction = pytest.mark.parametrize("direction", list(KL))
every_tail = pytest.mark.parametrize("tail", ["bucket", "renormalise", "truncate"])


def laws(*shape):
    return {
        "teacher_log_probs": log_probs(normal(*shape)),
        "student_log_probs": log_probs(normal(*shape, seed=1)),
    }


def by_direction(direction, given):
    """(law, other) of the KL: its support is the top k of the first."""
    teacher, student = given["teacher_log_probs"], given["student_log_probs"]
    return (teacher, student) if direction == "forward" else (student, teacher)


@every_direction
@every_tail
def test_k_of_the_whole_vocabulary_is_the_full_kl(direction, tail):
    given = laws(4, 3, 9)
    value = topk_kl(**given, direction=direction, k=9, tail=tail)
    assert torch.equal(value, KL[direction](**given))


@every_direction
@pytest.mark.parametrize("k", [1, 3, 8])
def test_values_by_their_formulas(direction, k):
    given = laws(9)
    first, second = by_direction(direction, given)
    ids = first.argsort(descending=True)[:k]
    p, q = first.exp()[ids], second.exp()[ids]
    mass, other = p.sum(), q.sum()
    truncated = (p * (p / q).log()).sum()
    expected = {
        "truncate": truncated,
        "renormalise": (p / mass * (p / mass * other / q).log()).sum(),
        "bucket": truncated + (1 - mass) * ((1 - mass) / (1 - other)).log(),
    }
    for tail, value in expected.items():
        got = topk_kl(**given, direction=direction, k=k, tail=tail)
        torch.testing.assert_close(got, value, atol=1e-12, rtol=1e-9)


@every_direction
@pytest.mark.parametrize("k", [1, 4, 8])
def test_the_full_kl_is_the_bucket_and_the_tail(direction, k):
    given = laws(9)
    first, second = by_direction(direction, given)
    tail = first.argsort(descending=True)[k:]
    deficit = forward_kl(
        teacher_log_probs=first[tail].log_softmax(-1),
        student_log_probs=second[tail].log_softmax(-1),
    )
    bucket = topk_kl(**given, direction=direction, k=k, tail="bucket")
    full = bucket + first[tail].exp().sum() * deficit
    torch.testing.assert_close(full, KL[direction](**given), atol=1e-12, rtol=1e-12)
    assert float(bucket) <= float(KL[direction](**given)) + 1e-12


@pytest.mark.parametrize("k", [1, 3])
def test_worked_gradients_of_the_forward_tails(k):
    teacher, student = normal(6), normal(6, seed=1)
    p, q = log_probs(teacher).exp(), log_probs(student).exp()
    kept = torch.zeros(6, dtype=torch.bool)
    kept[p.argsort(descending=True)[:k]] = True
    mass, other = p[kept].sum(), q[kept].sum()
    expected = {
        "bucket": torch.where(kept, q - p, q * (1 - (1 - mass) / (1 - other))),
        "renormalise": torch.where(kept, q / other - p / mass, 0.0),
    }
    for tail, gradient in expected.items():
        leaf = student.clone().requires_grad_()
        value = topk_kl(
            teacher_log_probs=log_probs(teacher),
            student_log_probs=log_probs(leaf),
            direction="forward",
            k=k,
            tail=tail,
        )
        torch.testing.assert_close(torch.autograd.grad(value, leaf)[0], gradient)


@every_direction
@every_tail
def test_gradient_is_the_finite_difference(direction, tail):
    teacher, student = log_probs(normal(3, 6)), normal(3, 6, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda z: topk_kl(
            teacher_log_probs=teacher,
            student_log_probs=log_probs(z),
            direction=direction,
            k=2,
            tail=tail,
        ),
        student,
    )


@every_direction
@pytest.mark.parametrize("tail", ["bucket", "renormalise"])
def test_zero_where_equal_and_never_negative(direction, tail):
    given = laws(50, 12)
    assert bool((topk_kl(**given, direction=direction, k=3, tail=tail) >= 0).all())
    same = given | {"student_log_probs": given["teacher_log_probs"]}
    assert bool((topk_kl(**same, direction=direction, k=3, tail=tail) == 0).all())


def test_a_truncated_sum_can_be_negative():
    given = {"teacher_log_probs": law(0.5, 0.3, 0.2), "student_log_probs": law(0.8, 0.1, 0.1)}
    value = topk_kl(**given, direction="forward", k=1, tail="truncate")
    assert float(value) == pytest.approx(0.5 * math.log(0.5 / 0.8))


def test_a_tiny_tail_is_summed_not_subtracted():
    given = {
        "teacher_log_probs": torch.tensor([0.0, -40.0, -40.0]),
        "student_log_probs": torch.tensor([0.0, -30.0, -41.0]),
    }
    got = topk_kl(**given, direction="reverse", k=1, tail="bucket")
    expected = math.exp(-30) * (-30 + 40 - math.log(2))
    assert float(got) == pytest.approx(expected, rel=1e-3)


def test_b19_the_top_k_is_global_and_numbered_by_the_vocabulary():
    case = BUGS["B19"]
    ids = topk_ids(numbers(case["input"]["logits"]).double(), k=case["input"]["k"])
    assert ids.tolist() == case["expect"]["ids"]


def test_ties_go_to_the_lowest_ids():
    assert topk_ids(torch.zeros(3, 1000), k=4).tolist() == [[0, 1, 2, 3]] * 3
    assert topk_ids(numbers([0.0, 2, 1, 2, 1]), k=3).tolist() == [1, 3, 2]


@every_direction
@every_tail
def test_a_token_impossible_for_both_adds_nothing(direction, tail):
    given = laws(5)
    never = torch.full((1,), -torch.inf, dtype=torch.float64)
    wide = {key: torch.cat([value, never]) for key, value in given.items()}
    got = topk_kl(**wide, direction=direction, k=2, tail=tail)
    torch.testing.assert_close(got, topk_kl(**given, direction=direction, k=2, tail=tail))


@every_direction
def test_an_empty_tail_has_no_gradient_and_no_nan(direction):
    teacher, student = law(0.6, 0.4, 0, 0), law(0.3, 0.7, 0, 0).requires_grad_()
    given = {"teacher_log_probs": teacher, "student_log_probs": student}
    value = topk_kl(**given, direction=direction, k=2, tail="bucket")
    torch.testing.assert_close(value, KL[direction](**given))
    assert bool(torch.autograd.grad(value, student)[0].isfinite().all())


@every_tail
def test_a_missing_token_of_the_support_is_refused(tail):
    given = {"teacher_log_probs": law(0.2, 0.3, 0.5), "student_log_probs": law(0.5, 0.5, 0)}
    with pytest.raises(ValueError, match=r"forward KL is infinite at position \(\), token id 2"):
        topk_kl(**given, direction="forward", k=1, tail=tail)


def test_a_missing_token_of_the_tail_matters_only_if_the_whole_tail_is_missing():
    teacher = law(0.5, 0.3, 0.1, 0.1)
    partly = {"teacher_log_probs": teacher, "student_log_probs": law(0.5, 0.4, 0.1, 0)}
    assert bool(topk_kl(**partly, direction="forward", k=2, tail="bucket").isfinite())
    wholly = {"teacher_log_probs": teacher, "student_log_probs": law(0.5, 0.5, 0, 0)}
    with pytest.raises(ValueError, match=r"forward KL is infinite at position \(\), token id 2"):
        topk_kl(**wholly, direction="forward", k=2, tail="bucket")
    assert bool(topk_kl(**wholly, direction="forward", k=2, tail="renormalise").isfinite())


@pytest.mark.parametrize("k", [0, 10])
def test_k_must_fit(k):
    with pytest.raises(ValueError, match="k="):
        topk_kl(**laws(2, 9), direction="forward", k=k, tail="bucket")


def test_unknown_names_and_unequal_vocabularies_are_refused():
    with pytest.raises(ValueError, match="direction='both' is unknown"):
        topk_kl(**laws(4), direction="both", k=1, tail="bucket")
    with pytest.raises(ValueError, match="tail='clamp' is unknown"):
        topk_kl(**laws(4), direction="forward", k=1, tail="clamp")
    unequal = laws(4) | {"student_log_probs": log_probs(normal(5))}
    with pytest.raises(ValueError, match="vocab_size"):
        topk_kl(**unequal, direction="forward", k=1, tail="bucket")

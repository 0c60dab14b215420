import pytest
import torch

from cases import BUGS, EXAMPLES
from fractionate.losses import (
    as_reward,
    estimate,
    forward_kl,
    forward_kl_from_student_tokens,
    importance_weight,
    log_probs,
    reverse_kl,
    sampled_loss,
    vopd_advantage,
)
from losses.laws import example_a, expected_gradient, law, logit_gradient, normal, numbers, pair

KL = {"forward": forward_kl, "reverse": reverse_kl}
every_direction = pytest.mark.parametrize("direction", list(KL))
every_estimator = pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])


def drawn_from(direction, student, teacher):
    return log_probs(teacher if direction == "forward" else student).exp()


def of(function, **options):
    return lambda student, teacher: function(
        log_prob_student=student, log_prob_teacher=teacher, **options
    )


def enumerated(student_law, teacher_law, direction, estimator):
    """(mean, standard deviation) of an estimator under the law that its tokens come from."""
    values = estimate(
        log_prob_student=student_law,
        log_prob_teacher=teacher_law,
        direction=direction,
        estimator=estimator,
    )
    weights = (teacher_law if direction == "forward" else student_law).exp()
    mean = (weights * values).sum()
    return float(mean), float((weights * (values - mean) ** 2).sum().sqrt())


@every_direction
@every_estimator
def test_worked_means_and_deviations(direction, estimator):
    a = example_a()
    mean, deviation = enumerated(
        a["student_log_probs"], a["teacher_log_probs"], direction, estimator
    )
    source = "p" if direction == "forward" else "q"
    assert mean == pytest.approx(EXAMPLES[f"E{source}_{estimator}"], abs=1e-9)
    assert deviation == pytest.approx(EXAMPLES[f"Sd{source}_{estimator}"], abs=1e-9)


@every_direction
@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_the_value_is_exact_on_average(direction, estimator):
    student, teacher = log_probs(normal(7)), log_probs(normal(7, seed=1))
    exact = KL[direction](teacher_log_probs=teacher, student_log_probs=student)
    loss = of(sampled_loss, direction=direction, estimator=estimator)(student, teacher)
    weights = (teacher if direction == "forward" else student).exp()
    torch.testing.assert_close((weights * loss).sum(), exact)


@every_direction
@every_estimator
def test_the_gradient_is_the_named_kl_on_average_whatever_the_estimator(direction, estimator):
    student, teacher = normal(7), normal(7, seed=1)
    got = expected_gradient(
        of(sampled_loss, direction=direction, estimator=estimator),
        student,
        teacher,
        drawn_from(direction, student, teacher),
    )
    torch.testing.assert_close(got, logit_gradient(KL[direction], student, teacher))


@every_direction
@every_estimator
def test_the_value_is_the_raw_estimate(direction, estimator):
    student, teacher = log_probs(normal(3, 4)), log_probs(normal(3, 4, seed=1))
    options = {"direction": direction, "estimator": estimator}
    value = of(sampled_loss, **options)(student, teacher)
    torch.testing.assert_close(value, of(estimate, **options)(student, teacher))


@pytest.mark.parametrize(
    ("key", "loss", "source"),
    [
        ("g_q_k1loss", of(estimate, direction="reverse", estimator="k1"), "q"),
        ("g_q_k2loss", of(estimate, direction="reverse", estimator="k2"), "q"),
        ("g_q_k3loss", of(estimate, direction="reverse", estimator="k3"), "q"),
        ("g_p_nll", of(estimate, direction="forward", estimator="k1"), "p"),
        ("g_p_k2loss", of(estimate, direction="forward", estimator="k2"), "p"),
        ("g_p_k3loss", of(estimate, direction="forward", estimator="k3"), "p"),
        ("g_q_k1rew", lambda s, t: as_reward(s - t, s), "q"),
        ("g_q_k2rew", lambda s, t: as_reward((s - t) ** 2 / 2, s), "q"),
        ("g_q_k3rew", lambda s, t: as_reward((t - s).exp() - 1 + s - t, s), "q"),
        ("g_p_k1rew", lambda s, t: as_reward(t - s, s), "p"),
    ],
)
def test_worked_gradients_of_the_raw_forms(key, loss, source):
    a = example_a()
    student, teacher = a["student_log_probs"], a["teacher_log_probs"]
    drawn = (teacher if source == "p" else student).exp()
    got = expected_gradient(loss, student, teacher, drawn)
    torch.testing.assert_close(got, numbers(EXAMPLES[key]), atol=1e-9, rtol=0)


def test_k3_as_loss_descends_the_other_kl_and_a_cosine_does_not_show_it():
    forward, reverse = numbers(EXAMPLES["g_q_k3loss"]), numbers(EXAMPLES["gR"])
    torch.testing.assert_close(forward, numbers(EXAMPLES["gF"]))
    cosine = torch.nn.functional.cosine_similarity(forward, reverse, dim=0)
    assert float(cosine) == pytest.approx(EXAMPLES["cos_k3_vs_R"], abs=1e-9)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_forward_kl_from_student_tokens(estimator):
    a = example_a()
    values = of(forward_kl_from_student_tokens, estimator=estimator)(
        a["student_log_probs"], a["teacher_log_probs"]
    )
    key = {"k1": "Eq_fwd_is", "k3": "Eq_fwd_nonneg"}[estimator]
    mean = (a["student_log_probs"].exp() * values).sum()
    assert float(mean) == pytest.approx(EXAMPLES[key], abs=1e-9)
    assert bool((values >= 0).all()) or estimator == "k1"


@pytest.mark.parametrize(
    ("prefix", "student", "teacher"),
    [("hv", law(0.5, 0.5), law(1e-4, 1 - 1e-4)), ("hv2", law(1e-4, 1 - 1e-4), law(0.5, 0.5))],
)
def test_heavy_tails(prefix, student, teacher):
    exact = reverse_kl(teacher_log_probs=teacher, student_log_probs=student)
    assert float(exact) == pytest.approx(EXAMPLES[f"{prefix}_rkl"], abs=1e-9)
    deviations = [enumerated(student, teacher, "reverse", k)[1] for k in ("k1", "k3")]
    assert deviations == pytest.approx(EXAMPLES[f"{prefix}_sd"], rel=1e-7)


def test_heavy_tail_in_the_other_direction():
    value = forward_kl(teacher_log_probs=law(1e-4, 1 - 1e-4), student_log_probs=law(0.5, 0.5))
    assert float(value) == pytest.approx(EXAMPLES["hv_fkl"], abs=1e-9)


# Variance and baselines.


def variance(loss, student, teacher, drawn):
    """Trace of the covariance of the logit gradient of one sampled token."""
    rows = torch.stack(
        [
            expected_gradient(loss, student, teacher, one_hot)
            for one_hot in torch.eye(len(drawn), dtype=drawn.dtype)
        ]
    )
    mean = drawn @ rows
    return float(drawn @ rows.square().sum(-1) - mean.square().sum())


@pytest.mark.parametrize("baseline", ["var_rkl_score", "var_rkl_vopd", "var_rkl_bstar"])
def test_worked_variance_of_the_reverse_loss(baseline):
    a = example_a()
    value = {"var_rkl_vopd": EXAMPLES["rkl"], "var_rkl_bstar": EXAMPLES["bstar"]}.get(baseline)
    shift = None if value is None else torch.full((3,), value, dtype=torch.float64)
    loss = of(sampled_loss, direction="reverse", estimator="k1", baseline=shift)
    student, teacher = a["student_log_probs"], a["teacher_log_probs"]
    assert variance(loss, student, teacher, student.exp()) == pytest.approx(
        EXAMPLES[baseline], abs=1e-9
    )


def test_worked_best_constant_baseline():
    a = example_a()
    q = a["student_log_probs"].exp()
    score = (torch.eye(3, dtype=torch.float64) - q).square().sum(-1)
    cost = a["student_log_probs"] - a["teacher_log_probs"]
    best = (q * cost * score).sum() / (q * score).sum()
    assert float(best) == pytest.approx(EXAMPLES["bstar"], abs=1e-9)


def test_worked_variance_of_the_forward_loss():
    a = example_a()
    student, teacher = a["student_log_probs"], a["teacher_log_probs"]
    loss = of(sampled_loss, direction="forward", estimator="k3")
    got = variance(loss, student, teacher, teacher.exp())
    assert got == pytest.approx(EXAMPLES["var_fkl_nll"], abs=1e-9)
    assert got == pytest.approx(EXAMPLES["one_minus_p2"], abs=1e-9)


@pytest.mark.parametrize(("direction", "source"), [("reverse", "q"), ("forward", "p")])
def test_worked_variance_of_k3_as_loss(direction, source):
    a = example_a()
    student, teacher = a["student_log_probs"], a["teacher_log_probs"]
    loss = of(estimate, direction=direction, estimator="k3")
    drawn = (student if source == "q" else teacher).exp()
    got = variance(loss, student, teacher, drawn)
    assert got == pytest.approx(EXAMPLES[f"var_k3loss_{source}"], abs=1e-9)


def test_a_baseline_changes_neither_value_nor_mean_gradient():
    student, teacher = normal(6), normal(6, seed=1)
    plain = of(sampled_loss, direction="reverse", estimator="k1")
    shifted = of(
        sampled_loss,
        direction="reverse",
        estimator="k1",
        baseline=torch.full((6,), 3.0, dtype=torch.float64),
    )
    qs, ps = log_probs(student), log_probs(teacher)
    torch.testing.assert_close(plain(qs, ps), shifted(qs, ps))
    drawn = qs.exp()
    torch.testing.assert_close(
        expected_gradient(plain, student, teacher, drawn),
        expected_gradient(shifted, student, teacher, drawn),
    )


def test_worked_vopd_advantage():
    a = example_a()
    student, teacher = a["student_log_probs"], a["teacher_log_probs"]
    got = vopd_advantage(
        log_prob_student=student, log_prob_teacher=teacher, reverse_kl=reverse_kl(**a).expand(3)
    )
    torch.testing.assert_close(got, numbers(EXAMPLES["vopd_A"]), atol=1e-9, rtol=0)
    assert float((student.exp() * got).sum()) == pytest.approx(0, abs=1e-12)


# Tokens from a third law.


def test_importance_weights_repair_tokens_from_another_law():
    student, teacher, behaviour = normal(5), normal(5, seed=1), log_probs(normal(5, seed=2))
    weight = importance_weight(log_prob=log_probs(student), log_prob_behaviour=behaviour)
    plain = of(sampled_loss, direction="reverse", estimator="k1")
    got = expected_gradient(lambda s, t: weight * plain(s, t), student, teacher, behaviour.exp())
    torch.testing.assert_close(got, logit_gradient(reverse_kl, student, teacher))


def test_worked_chi_square_of_importance_weights():
    mu = law(0.3, 0.3, 0.4)
    weight = importance_weight(log_prob=law(*EXAMPLES["q"]), log_prob_behaviour=mu)
    chi2 = (mu.exp() * weight.square()).sum() - 1
    assert float(chi2) == pytest.approx(EXAMPLES["chi2_q_mu"], abs=1e-9)


# Bug reports.


def test_b17_a_cost_that_ignores_the_token_trains_nothing():
    case = BUGS["B17"]
    student, teacher = pair("A")
    drawn = log_probs(student).exp()
    reward = of(sampled_loss, direction="reverse", estimator="k1")
    got = expected_gradient(reward, student, teacher, drawn)
    expected = numbers(case["expect"]["expected_gradient"])
    torch.testing.assert_close(got, expected, atol=1e-9, rtol=0)
    flat = expected_gradient(lambda s, _: as_reward(torch.ones_like(s), s), student, teacher, drawn)
    torch.testing.assert_close(flat, torch.zeros(4).double(), atol=1e-12, rtol=0)
    wrong = expected_gradient(reward, student, teacher, log_probs(teacher).exp())
    faulty = numbers(case["faulty"]["teacher_probability_weights"])
    torch.testing.assert_close(wrong, faulty, atol=1e-9, rtol=0)


@every_estimator
def test_b18_values_and_gradients_of_the_raw_estimators(estimator):
    expected = BUGS["B18"]["expect"][f"{estimator}_loss"]
    student, teacher = pair("A")
    raw = of(estimate, direction="reverse", estimator=estimator)
    drawn = log_probs(student).exp()
    value = (drawn * raw(log_probs(student), log_probs(teacher))).sum()
    assert float(value) == pytest.approx(expected["value"], abs=1e-9)
    got = expected_gradient(raw, student, teacher, drawn)
    torch.testing.assert_close(got, numbers(expected["grad"]).double(), atol=1e-9, rtol=0)


def test_b18_k1_as_reward():
    student, teacher = pair("A")
    drawn = log_probs(student).exp()
    got = expected_gradient(lambda s, t: as_reward(s - t, s), student, teacher, drawn)
    expected = numbers(BUGS["B18"]["expect"]["k1_reward"]["grad"])
    torch.testing.assert_close(got, expected, atol=1e-9, rtol=0)


def test_b18_k3_at_a_log_ratio_of_one():
    value = of(estimate, direction="reverse", estimator="k3")(numbers([-2.0]), numbers([-1.0]))
    expected = BUGS["B18"]["expect"]["k3_at_log_ratio_teacher_over_student_1"]
    assert float(value) == pytest.approx(expected, abs=1e-9)


# Errors.


def test_unknown_directions_and_estimators_are_refused():
    laws = (numbers([-1.0]), numbers([-2.0]))
    with pytest.raises(ValueError, match="direction='backward' is unknown"):
        of(sampled_loss, direction="backward", estimator="k1")(*laws)
    with pytest.raises(ValueError, match="estimator='k4' is unknown"):
        of(sampled_loss, direction="forward", estimator="k4")(*laws)
    with pytest.raises(ValueError, match="estimator='k2' is unknown"):
        of(forward_kl_from_student_tokens, estimator="k2")(*laws)


def test_forward_takes_no_baseline():
    loss = of(sampled_loss, direction="forward", estimator="k1", baseline=numbers([0.0]))
    with pytest.raises(ValueError, match="baseline"):
        loss(numbers([-1.0]), numbers([-2.0]))


@every_direction
@pytest.mark.parametrize("who", ["student", "teacher"])
def test_a_sampled_token_without_mass_is_refused(direction, who):
    laws = {"student": -torch.ones(2, 2), "teacher": -torch.ones(2, 2)}
    laws[who][1, 0] = -torch.inf
    loss = of(sampled_loss, direction=direction, estimator="k1")
    with pytest.raises(ValueError, match=rf"position \(1, 0\) has no mass under the {who}"):
        loss(laws["student"], laws["teacher"])


@every_direction
def test_half_precision_is_upcast(direction):
    loss = of(sampled_loss, direction=direction, estimator="k3")
    assert (
        loss(torch.tensor([-1.0]).bfloat16(), torch.tensor([-2.0]).bfloat16()).dtype
        == torch.float32
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"log_prob_teacher": torch.zeros(1)}, r"log_prob_student \(3,\) and log_prob_teacher"),
        ({"baseline": torch.zeros(1)}, r"log_prob_student \(3,\) and baseline"),
    ],
)
def test_unequal_shapes_are_refused(change, message):
    arguments = {"log_prob_student": torch.zeros(3), "log_prob_teacher": torch.zeros(3)} | change
    with pytest.raises(ValueError, match=message):
        sampled_loss(**arguments, direction="reverse", estimator="k1")


def test_importance_weights_need_one_shape():
    with pytest.raises(ValueError, match="log_prob_behaviour"):
        importance_weight(log_prob=torch.zeros(3), log_prob_behaviour=torch.zeros(1))

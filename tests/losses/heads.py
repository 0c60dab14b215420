"""Hidden states and heads that the tests of the fused loss share."""

import torch

from fractionate.losses import linear_divergence, log_probs
from losses.laws import FUSED, normal

N, V, HS, HT = 23, 19, 5, 7
TEMPERATURES = {"student_temperature": 1.3, "teacher_temperature": 0.5}


def operands(dtype=torch.float64, n=N, v=V, extra=0):
    return {
        "student_hidden": normal(n, HS, seed=1).to(dtype).requires_grad_(),
        "student_head": normal(v, HS, seed=2).to(dtype).requires_grad_(),
        "teacher_hidden": normal(n, HT, seed=3).to(dtype),
        "teacher_head": normal(v + extra, HT, seed=4).to(dtype),
    }


def weights(n=N, dtype=torch.float64):
    return normal(n, seed=5).abs().to(dtype)


def whole_laws(given, vocab_size=None):
    """Both laws from the whole logits, in the upcast dtype of the operands."""
    wide = {
        key: value.to(torch.promote_types(value.dtype, torch.float32))
        for key, value in given.items()
    }
    return {
        f"{who}_log_probs": log_probs(
            wide[f"{who}_hidden"] @ wide[f"{who}_head"].T,
            temperature=TEMPERATURES[f"{who}_temperature"],
            vocab_size=vocab_size,
        )
        for who in ("teacher", "student")
    }


def student_gradients(loss, given, **kwargs):
    return torch.autograd.grad(loss, (given["student_hidden"], given["student_head"]), **kwargs)


def fused(name, given, **kwargs):
    kind, parameter = FUSED[name]
    return linear_divergence(**given, kind=kind, parameter=parameter, **TEMPERATURES, **kwargs)

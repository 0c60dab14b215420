"""Worked sizes and spacings that explain the defaults, computed from first principles."""

import pytest
import torch

from cases import EXAMPLES
from fractionate.metrics.gradients import adam_updates
from fractionate.study.dimensions import dimensions_of

PAPER_STUDENTS = ("meta-llama/Llama-3.2-1B-Instruct", "Qwen/Qwen2.5-1.5B-Instruct")


@pytest.mark.parametrize(
    ("model", "share"), list(zip(PAPER_STUDENTS, EXAMPLES["emb_share"], strict=True))
)
def test_the_embedding_is_a_large_share_of_the_papers_students(model: str, share: float):
    sizes = dimensions_of(model)
    assert sizes is not None
    assert sizes.vocabulary * sizes.hidden / sizes.parameters == pytest.approx(share, rel=1e-3)


def test_one_logits_matrix_of_the_papers_sizes():
    shapes = ((512, 128_256), (1_024, 128_256), (1_024, 151_936))
    sizes = [4 * rows * vocabulary / 2**30 for rows, vocabulary in shapes]
    assert sizes == pytest.approx(EXAMPLES["logits_gib"], rel=1e-9)


def test_adam_forgets_the_scale_of_the_gradient_up_to_its_epsilon():
    whole, quarter = adam_updates([1.0])[0], adam_updates([0.25])[0]
    assert abs(whole - quarter) == pytest.approx(EXAMPLES["adam_scale"], rel=1e-6)


def test_a_bfloat16_second_moment_does_not_decay():
    """0.999 v is less than half a spacing away from v, wherever v lies between powers of two."""
    for key, value in (("v_decay_bf16", 1.0), ("v_decay_075", 1.9921875)):
        v = torch.tensor(value, dtype=torch.bfloat16)
        assert (v * 0.999).item() == EXAMPLES[key]

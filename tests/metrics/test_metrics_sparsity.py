import pytest
import torch

import tiny
from fractionate.metrics import (
    layer_of,
    mask_overlap,
    matrix_of,
    moved_mask,
    update_sparsity,
    weight_record,
)

OPTIMIZER = {"lr": 1e-5, "steps": 150, "warmup": 10, "seed": 0}


def test_strict_and_inclusive_thresholds_differ_only_on_the_edge():
    before = {"w": torch.zeros(4, dtype=torch.float64)}
    after = {"w": torch.tensor([0.0, 5e-7, 1e-6, 2e-6], dtype=torch.float64)}
    assert update_sparsity(before, after) == 0.5
    assert update_sparsity(before, after, strict=False) == 0.75


@pytest.mark.parametrize("strict", [True, False])
def test_threshold_zero_means_exactly_equal(strict):
    before = {"w": torch.tensor([0.0, -0.0, 1.0, 1.0])}
    after = {"w": torch.tensor([0.0, 0.0, 1.0, 1.0 + 2**-23])}
    assert update_sparsity(before, after, threshold=0, strict=strict) == 0.75


def test_difference_is_taken_in_float64_from_the_stored_dtype():
    # In bfloat16 1 + 2^-7 - 1 is exact, but 256 - 255 would round in lower precision sums.
    before = {"w": torch.tensor([1.0, 3.0], dtype=torch.bfloat16)}
    after = {"w": torch.tensor([1.0 + 2**-7, 3.0], dtype=torch.bfloat16)}
    assert update_sparsity(before, after, threshold=2**-7) == 0.5
    assert update_sparsity(before, after, threshold=2**-7, strict=False) == 1.0


def test_sizes_weigh_the_total():
    before = {"a": torch.zeros(9), "b": torch.zeros(1)}
    after = {"a": torch.zeros(9), "b": torch.ones(1)}
    assert update_sparsity(before, after) == 0.9


def tied_pair():
    embedding, trained = torch.zeros(4), torch.ones(4)
    before = {"embed": embedding, "head": embedding, "norm": torch.ones(4)}
    after = {"embed": trained, "head": trained, "norm": torch.ones(4)}
    return before, after


def test_shared_storage_counts_once():
    assert update_sparsity(*tied_pair()) == 0.5


@pytest.mark.parametrize("tied", ["head", ("head",), ("embed", "head"), (("embed", "head"),)])
def test_named_ties_count_once(tied):
    before, after = ({k: v.clone() for k, v in side.items()} for side in tied_pair())
    assert update_sparsity(before, after) == pytest.approx(1 / 3)
    assert update_sparsity(before, after, tied=tied) == 0.5


def test_storage_shared_on_one_side_only_counts_twice_once_values_part():
    before, after = tied_pair()
    after = {**after, "head": torch.full((4,), 2.0)}
    assert update_sparsity(before, after) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("before", "after", "tied", "message"),
    [
        ({"a": 1, "b": 1}, {"a": 1}, (), "'b' is in before but not in after"),
        ({"a": 1}, {"a": 1, "c": 1}, (), "'c' is in after but not in before"),
        ({"a": 2}, {"a": 3}, (), r"'a' has shape \(2,\) before and \(3,\) after"),
        ({}, {}, (), "no parameter"),
        ({"a": 1}, {"a": 1}, ("z",), "tied names 'z'"),
        ({"a": 1}, {"a": 1}, ("a",), "no other tensor equals it"),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, (("a", "b"),), "they differ"),
    ],
)
def test_refusals_name_the_tensor(before, after, tied, message):
    made = [{name: torch.ones(size) for name, size in side.items()} for side in (before, after)]
    with pytest.raises(ValueError, match=message):
        update_sparsity(*made, tied=tied)


def test_numbers_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="'w' holds NaN"):
        update_sparsity({"w": torch.zeros(2)}, {"w": torch.tensor([0.0, float("nan")])})


def test_negative_threshold_is_refused():
    with pytest.raises(ValueError, match="threshold"):
        update_sparsity({"w": torch.zeros(2)}, {"w": torch.zeros(2)}, threshold=-1.0)


NAMES = {
    "model.embed_tokens.weight": ("embedding", "embedding"),
    "model.layers.0.self_attn.q_proj.weight": ("0", "q"),
    "model.layers.0.self_attn.q_proj.bias": ("0", "bias"),
    "model.layers.11.mlp.gate_proj.weight": ("11", "gate"),
    "model.layers.11.mlp.down_proj.weight": ("11", "down"),
    "model.layers.2.post_attention_layernorm.weight": ("2", "norm"),
    "model.norm.weight": ("norm", "norm"),
    "lm_head.weight": ("head", "head"),
    "transformer.h.3.attn.c_attn.weight": ("3", "c_attn"),
    "transformer.h.3.ln_1.bias": ("3", "norm"),
    "transformer.wte.weight": ("embedding", "embedding"),
}


@pytest.mark.parametrize("name", NAMES)
def test_layers_and_matrix_types_come_from_names(name):
    assert (layer_of(name), matrix_of(name)) == NAMES[name]


def small_update():
    before = {
        "model.embed_tokens.weight": torch.tensor([0.5, 0.5, 0.001, 0.25]),
        "model.layers.0.self_attn.q_proj.weight": torch.tensor([1.0, 2.0]),
        "model.norm.weight": torch.tensor([1.0, 1.0]),
    }
    before = {name: value.bfloat16() for name, value in before.items()}
    after = {name: value.clone() for name, value in before.items()}
    after["model.embed_tokens.weight"][:2] = 0.75
    after["model.layers.0.self_attn.q_proj.weight"][0] = 1.0 + 2**-7
    return before, after


def record(before, after, *, param_dtype="bfloat16", **changes):
    thresholds = (0.0, 1e-6, 2**-7)
    arguments = {**OPTIMIZER, "param_dtype": param_dtype, "thresholds": thresholds, **changes}
    return weight_record(before, after, **arguments)


def test_weight_record_counts_by_threshold_layer_and_matrix():
    found = record(*small_update())
    assert found.parameters == 8
    assert found.unmoved == {"0": 5 / 8, "1e-06": 5 / 8, "0.0078125": 5 / 8}
    assert found.unmoved_inclusive == {"0": 5 / 8, "1e-06": 5 / 8, "0.0078125": 6 / 8}
    assert found.by_layer == {"embedding": 0.5, "0": 0.5, "norm": 1.0}
    assert found.by_matrix == {"embedding": 0.5, "q": 0.5, "norm": 1.0}


def test_weight_record_sizes_of_the_update():
    found = record(*small_update())
    assert found.delta_l2 == pytest.approx((2 * 0.25**2 + 2**-14) ** 0.5)
    total = sum(float(value.double().sum()) for value in small_update()[0].values())
    assert found.relative_l1 == pytest.approx((0.5 + 2**-7) / total)
    assert found.unmoved_relative == 5 / 8


def test_weight_record_carries_the_rounding_null():
    found = record(*small_update())
    assert found.rounding_bound == 7 / 8
    assert set(found.rounding_null) == set(found.unmoved)
    assert all(7 / 8 <= share <= 1.0 for share in found.rounding_null.values())


def test_master_weights_have_their_own_null(generator):
    before = {"w": (torch.randn(20_000, generator=generator) * 0.02).bfloat16()}
    stored = record(before, before)
    master = record(before, before, param_dtype="float32")
    assert master.rounding_bound == 0.0
    assert 0.05 < master.rounding_null["0"] < 0.12 < stored.rounding_null["0"]


def test_overlap_of_two_masks_has_its_chance_level():
    first = torch.tensor([True, True, False, False])
    second = torch.tensor([True, True, True, False])
    found = mask_overlap(first, second)
    assert (found.overlap, found.chance) == (1.0, 0.75)


def test_empty_first_mask_has_no_overlap():
    with pytest.raises(ValueError, match="no parameter moved"):
        mask_overlap(torch.zeros(3, dtype=torch.bool), torch.ones(3, dtype=torch.bool))


def test_moved_mask_is_the_complement_of_sparsity():
    before, after = small_update()
    assert float(moved_mask(before, after).double().mean()) == 1 - update_sparsity(before, after)


def trained_llama():
    before, after = (tiny.llama(tie_word_embeddings=True) for _ in range(2))
    with torch.no_grad():
        for parameter in after.parameters():
            parameter[..., ::3] += 0.01
    return before, after


def test_a_tied_llama_counts_its_embedding_once():
    before, after = trained_llama()
    found = record(before.state_dict(), after.state_dict())
    assert found.parameters == sum(parameter.numel() for parameter in before.parameters())
    assert "lm_head.weight" in before.state_dict()


def test_layers_and_matrices_add_up_to_the_total():
    before, after = (dict(model.named_parameters()) for model in trained_llama())
    found = record(before, after)
    for shares, group_of in ((found.by_layer, layer_of), (found.by_matrix, matrix_of)):
        sizes = dict.fromkeys(shares, 0)
        for name, parameter in before.items():
            sizes[group_of(name)] += parameter.numel()
        unmoved = sum(share * sizes[group] for group, share in shares.items())
        assert unmoved / found.parameters == pytest.approx(found.unmoved["1e-06"])

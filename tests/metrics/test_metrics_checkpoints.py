"""Checkpoints on disk: shards, adapters, overlaps, ranks and tables of pairs."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny
from fractionate.metrics import mask_overlap, moved_mask, rank_measures
from fractionate.metrics.checkpoint_files import Checkpoint, CheckpointError
from fractionate.metrics.checkpoints import checkpoint_overlap, checkpoint_sparsity
from fractionate.metrics.pairs import PairTableError, locate, read_pairs

pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"  # PEFT reads it
)
ROOT = "studies/paper/e15_pairs.csv"


def trained(folder, name, *, seed=0, scale=1e-3, every=2, **changes):
    """A checkpoint whose weights differ from the base's in every so many numbers."""
    model = tiny.llama(3, **changes)
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            flat = weight.view(-1)[::every]
            flat += scale * torch.randn(flat.shape, generator=noise).to(flat.dtype)
    model.save_pretrained(folder / name)
    return folder / name


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("checkpoints")
    tiny.llama(3).save_pretrained(place / "base")
    trained(place, "first", seed=1)
    trained(place, "second", seed=2, every=3)
    return place


def tensors(path):
    return load_file(path / "model.safetensors")


def test_overlap_on_disk_equals_overlap_in_memory(folder):
    base, first, second = (tensors(folder / name) for name in ("base", "first", "second"))
    expected = mask_overlap(moved_mask(base, first), moved_mask(base, second))
    found = checkpoint_overlap(folder / "base", folder / "first", folder / "second", threshold=1e-6)
    assert found == expected
    assert found.chance == pytest.approx(1 / 3, abs=0.01)
    assert found.jaccard == pytest.approx((1 / 6) / (1 / 2 + 1 / 3 - 1 / 6), abs=0.01)
    assert found.chance_jaccard == pytest.approx(found.jaccard, abs=0.01)  # strides 2 and 3


def test_a_mask_overlaps_itself(folder):
    found = checkpoint_overlap(folder / "base", folder / "first", folder / "first", threshold=0)
    assert found.overlap == found.jaccard == 1.0


def test_ranks_are_means_over_matrices(folder):
    found = checkpoint_sparsity(folder / "base", folder / "first", thresholds=(0.0,), ranks=True)
    base, first = tensors(folder / "base"), tensors(folder / "first")
    names = [n for n in base if base[n].ndim == 2 and "proj" in n]
    rows = [rank_measures(first[name] - base[name]) for name in names]
    assert found.ranks["all"].matrices == len(names) == 14
    assert found.ranks["all"].stable == pytest.approx(sum(r.stable for r in rows) / 14)
    assert {"q", "k", "v", "o", "gate", "up", "down"} < set(found.ranks)
    assert "embedding" not in found.ranks


def test_the_bfloat16_convention_rounds_both_sides_first(folder):
    base, first = tensors(folder / "base"), tensors(folder / "first")
    found = checkpoint_sparsity(folder / "base", folder / "first", thresholds=(0.0, 1e-5)).total
    total = sum(value.numel() for value in base.values())
    for label, tolerance in (("0", 0.0), ("1e-05", 1e-5)):
        close = sum(
            int(
                torch.isclose(
                    first[n].bfloat16() - base[n].bfloat16(),
                    torch.zeros((), dtype=torch.bfloat16),
                    rtol=0,
                    atol=tolerance,
                ).sum()
            )
            for n in base
        )
        assert found.bfloat16[label] == close / total
    assert found.bfloat16["0"] > found.strict["0"]


def test_blocks_are_bounded_whatever_the_tensor(folder, monkeypatch):
    monkeypatch.setattr("fractionate.metrics.checkpoint_files.BLOCK", 300)
    checkpoint = Checkpoint(folder / "base")
    for name in checkpoint.names:
        blocks = list(checkpoint.blocks(name))
        assert all(block.numel() <= 300 for block in blocks)
        assert sum(block.numel() for block in blocks) == torch.Size(checkpoint.shape(name)).numel()


# ---------------------------------------------------------------- adapters


def adapter(folder, name, **changes):
    """A LoRA adapter with random factors, and the weights that PEFT merges it into."""
    peft = pytest.importorskip("peft", reason="PEFT is not installed")
    model = tiny.llama(3).to(changes.pop("dtype", torch.float32))
    settings = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"], **changes}
    wrapped = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    noise = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for key, weight in wrapped.named_parameters():
            if "lora_" in key or "modules_to_save" in key:
                weight.copy_(0.1 * torch.randn(weight.shape, generator=noise))
    wrapped.save_pretrained(folder / name)
    wrapped.merge_and_unload().save_pretrained(folder / f"{name}-merged")
    return folder / name, folder / f"{name}-merged"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"use_rslora": True},
        {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"q_proj": 3}},
        {"modules_to_save": ["lm_head"]},
    ],
    ids=["plain", "rslora", "patterns", "whole modules"],
)
def test_an_adapter_is_compared_as_peft_merges_it(folder, tmp_path, changes):
    path, merged = adapter(tmp_path, "adapter", **changes)
    thresholds = (0.0, 1e-6, 1e-3)
    found = checkpoint_sparsity(folder / "base", path, thresholds=thresholds)
    expected = checkpoint_sparsity(folder / "base", merged, thresholds=thresholds)
    assert found.total.strict == pytest.approx(expected.total.strict, abs=2e-4)
    assert found.delta_l2 == pytest.approx(expected.delta_l2, rel=1e-5)
    assert found.by_matrix["q"].strict["0"] < 0.01
    assert found.by_matrix["k"].strict["0"] == 1.0


def test_an_adapter_in_blocks_is_the_same(folder, tmp_path, monkeypatch):
    path, _ = adapter(tmp_path, "adapter")
    whole = checkpoint_sparsity(folder / "base", path, thresholds=(1e-3,))
    monkeypatch.setattr("fractionate.metrics.checkpoint_files.BLOCK", 100)
    split = checkpoint_sparsity(folder / "base", path, thresholds=(1e-3,))
    assert split.total.strict == pytest.approx(whole.total.strict, abs=2e-4)


def test_merging_in_bfloat16_loses_small_updates(folder, tmp_path):
    path, _ = adapter(tmp_path, "adapter")
    exact = checkpoint_sparsity(folder / "base", path, thresholds=(0.0,), round_before=True)
    rounded = checkpoint_sparsity(
        folder / "base", path, thresholds=(0.0,), round_before=True, merge_dtype=torch.bfloat16
    )
    assert rounded.dtypes == ("float32", "bfloat16")
    assert rounded.by_matrix["q"].strict["0"] > exact.by_matrix["q"].strict["0"]


@pytest.mark.parametrize("change", [{"use_dora": True}, {"bias": "all"}, {"peft_type": "IA3"}])
def test_adapters_of_other_kinds_are_refused(folder, tmp_path, change):
    path, _ = adapter(tmp_path, "adapter")
    config = json.loads((path / "adapter_config.json").read_text())
    (path / "adapter_config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(CheckpointError, match="merge_and_unload"):
        checkpoint_sparsity(folder / "base", path, thresholds=(0.0,))


def test_an_adapter_of_another_base_is_refused_by_the_tensor(folder, tmp_path):
    path, _ = adapter(tmp_path, "adapter")
    file = path / "adapter_model.safetensors"
    renamed = {key.replace("layers.1", "layers.7"): value for key, value in load_file(file).items()}
    save_file(renamed, file)
    with pytest.raises(CheckpointError, match=r"adapts 'model\.layers\.7.*does not have"):
        checkpoint_sparsity(folder / "base", path, thresholds=(0.0,))


def test_pickled_weights_are_refused_with_the_mend(folder, tmp_path):
    torch.save({}, tmp_path / "pytorch_model.bin")
    for path in (tmp_path, tmp_path / "pytorch_model.bin"):
        with pytest.raises(CheckpointError, match=r"can run code when opened.*save_pretrained"):
            checkpoint_sparsity(folder / "base", path, thresholds=(0.0,))


# ---------------------------------------------------------------- tables of pairs


def test_the_papers_thirteen_pairs(request):
    pairs = read_pairs(request.config.rootpath / ROOT)
    assert len(pairs) == 13
    sft = sorted(pair.lr for pair in pairs if pair.stage == "SFT")
    assert sft == [2e-6, 5e-6, 2e-5]
    others = sorted(pair.lr for pair in pairs if pair.stage != "SFT" and pair.lr is not None)
    assert len(others) == 9
    assert others[4] == 5e-7
    assert sum(others) / 9 == pytest.approx(1.5e-6)
    assert sum(pair.lr is None for pair in pairs) == 1
    largest = {pair.lr: pair.largest_movable for pair in pairs}
    assert largest[5e-6] == pytest.approx(0.00195312, rel=1e-5)
    assert largest[5e-7] == pytest.approx(0.000244141, rel=1e-5)
    assert largest[8e-6] == pytest.approx(0.00390625, rel=1e-5)


def test_pairs_are_located_beside_the_table(folder):
    table = folder / "pairs.yaml"
    table.write_text("- {stage: SFT, base: base, tuned: first, lr: 1e-5}\n")
    (pair,) = read_pairs(table)
    assert pair.lr == 1e-5
    assert locate(pair.base) == folder / "base"
    assert locate("nobody/nothing-of-this-name") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- {stage: SFT, base: a}", "pair 1 has no 'tuned'"),
        ("- {base: a, tuned: b, rate: 1}", "unknown field 'rate'"),
        ("- {base: a, tuned: b, lr: fast}", "lr 'fast' is no number"),
        ("base: a", "is no list of pairs"),
    ],
)
def test_a_faulty_table_names_the_pair(tmp_path, text, message):
    (tmp_path / "pairs.yaml").write_text(text)
    with pytest.raises(PairTableError, match=message):
        read_pairs(tmp_path / "pairs.yaml")

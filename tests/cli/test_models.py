"""Verbs about single models: distill, evaluate, sparsity, sandbox build."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_study import invoke, write_study
from transformers import AutoModelForCausalLM

import tiny
from fractionate.metrics import update_sparsity
from fractionate.metrics.checkpoints import CheckpointError, checkpoint_sparsity

TABLE = ("--prompt", "question", "--answer", "answer")


def _distill(place, *more):
    small = ("--test", 8, "--steps", 2, "--prompts", 2, "--max-tokens", 6, "--lr", 1e-2)
    return invoke(
        "distill", "--student", place / "student", "--teacher", place / "teacher",
        "--data", place / "rows.jsonl", *TABLE, *small, "--store", place / "runs", *more,
    )  # fmt: skip


def test_one_run_from_flags_leaves_a_student_and_a_table(place):
    result = _distill(place, "-o", place / "trained")
    assert result.exit_code == 0, result.stderr
    assert "accuracy" in result.stdout
    assert "kl_to_teacher" in result.stdout
    AutoModelForCausalLM.from_pretrained(place / "trained")
    document = json.loads(_distill(place, "--json").stdout)
    assert document["computed"] == 0
    assert {"before", "after", "student"} <= document.keys()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((), "--student"),
        (("--student", "student"), "--teacher"),
        (("--student", "s", "--teacher", "t", "--task", "gone.jsonl"), "gone.jsonl"),
        (("--student", "a/b", "--teacher", "c/d", "--kl", "sideways"), "method.divergence.kind"),
        (("--student", "a/b", "--teacher", "c/d", "--rollout", "nobody"), "method.rollout.kind"),
        (("--student", "a/b", "--teacher", "a/b"), "models.teacher"),
    ],
)
def test_distill_names_what_is_wrong_with_the_flags(arguments, word):
    result = invoke("distill", *arguments)
    assert result.exit_code == 2
    assert word in result.stderr


def test_distill_needs_to_know_the_column_of_the_prompts(place):
    models = ("--student", place / "student", "--teacher", place / "teacher")
    result = invoke("distill", *models, "--data", place / "rows.jsonl")
    assert result.exit_code == 2
    assert "--prompt" in result.stderr


def test_distill_takes_a_study_that_varies_nothing(place):
    result = invoke("distill", write_study(place))
    assert result.exit_code == 2
    assert "vary" in result.stderr
    study = write_study(place, vary="{}", seeds="[5, 6]")
    result = invoke("distill", study, "--store", place / "runs", "--json")
    assert result.exit_code == 0, result.stderr
    assert len(list((place / "runs" / "cell").iterdir())) == 1


def test_a_model_is_measured_on_all_rows_of_a_file(workplace):
    data = ("--data", workplace / "rows.jsonl", *TABLE, "--max-tokens", 6)
    result = invoke("evaluate", workplace / "student", *data, "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    accuracy = next(one for one in document["metrics"] if one["metric"] == "accuracy")
    assert accuracy["n"] == 40
    assert document["completions"] == sum(document["reasons"].values()) == 40


def test_several_samples_give_pass_at_k(workplace):
    data = ("--data", workplace / "rows.jsonl", *TABLE, "--max-tokens", 6)
    result = invoke("evaluate", workplace / "student", *data, "--samples", 4, "--items", 5)
    assert "pass@4@0.5" in result.stdout
    assert "of 20 completions" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("gone-folder/model/x",), "gone-folder"),
        (("student", "--data", "gone.jsonl", *TABLE), "gone.jsonl"),
        (("student", "--samples", "4", "--temperature", "0"), "--temperature"),
        (("student", "--task", "sandbox", "--operands", "6"), "--operands 6"),
        (("student", "--data", "rows.jsonl", *TABLE, "--items", "99"), "40 rows"),
        (("student", "--data", "rows.jsonl", "--prompt", "quest"), "question"),
    ],
)
def test_evaluate_names_what_is_wrong(workplace, monkeypatch, arguments, word):
    monkeypatch.chdir(workplace)
    result = invoke("evaluate", *arguments)
    assert result.exit_code == 2
    assert word in result.stderr


# ---------------------------------------------------------------- sparsity of checkpoints


def _pair(folder, **changes):
    """A checkpoint and one that differs from it in some numbers."""
    before, after = folder / "before", folder / "after"
    model = tiny.llama(3, **changes)
    model.save_pretrained(before)
    with torch.no_grad():
        for i, weight in enumerate(model.parameters()):
            weight.view(-1)[:: i + 2] += 10.0 ** -(i % 9)
    model.save_pretrained(after)
    return before, after


def test_sparsity_on_disk_equals_sparsity_in_memory(tmp_path):
    before, after = _pair(tmp_path)
    old, new = (load_file(path / "model.safetensors") for path in (before, after))
    found = checkpoint_sparsity(before, after, thresholds=(0.0, 1e-6, 1e-3))
    for threshold, label in ((0.0, "0"), (1e-6, "1e-06"), (1e-3, "0.001")):
        whole = update_sparsity(old, new, threshold=threshold)
        assert found.total.strict[label] == whole
        inclusive = update_sparsity(old, new, threshold=threshold, strict=False)
        assert found.total.inclusive[label] == inclusive
    assert 0 < found.total.strict["1e-06"] < 1


def test_groups_add_up_to_the_whole(tmp_path):
    found = checkpoint_sparsity(*_pair(tmp_path), thresholds=(1e-6,))
    for groups in (found.by_layer, found.by_matrix):
        parameters = sum(shares.parameters for shares in groups.values())
        unmoved = sum(shares.parameters * shares.strict["1e-06"] for shares in groups.values())
        assert parameters == found.total.parameters
        assert unmoved == pytest.approx(parameters * found.total.strict["1e-06"])


def test_shards_and_small_blocks_change_nothing(tmp_path, monkeypatch):
    before, after = _pair(tmp_path)
    whole = checkpoint_sparsity(before, after, thresholds=(0.0, 1e-6))
    AutoModelForCausalLM.from_pretrained(after).save_pretrained(
        tmp_path / "shards", max_shard_size="20KB"
    )
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    monkeypatch.setattr("fractionate.metrics.checkpoint_files.BLOCK", 100)
    split = checkpoint_sparsity(before, tmp_path / "shards", thresholds=(0.0, 1e-6))
    assert split.total == whole.total
    assert split.delta_l2 == pytest.approx(whole.delta_l2, rel=1e-12)


def test_a_tied_head_counts_once_whether_saved_or_not(tmp_path):
    before, after = _pair(tmp_path, tie_word_embeddings=True)
    weights = load_file(after / "model.safetensors")
    assert "lm_head.weight" not in weights
    plain = checkpoint_sparsity(before, after, thresholds=(1e-6,))
    head = weights["model.embed_tokens.weight"].clone()
    save_file({**weights, "lm_head.weight": head}, after / "model.safetensors")
    saved = checkpoint_sparsity(before, after, thresholds=(1e-6,))
    assert saved.total == plain.total
    assert saved.left_out == ("lm_head.weight",)


def test_rounding_the_base_leaves_the_storage_out(tmp_path):
    model = tiny.llama(3)
    model.save_pretrained(tmp_path / "before")
    model.to(torch.bfloat16).save_pretrained(tmp_path / "after")
    paths = (tmp_path / "before", tmp_path / "after")
    assert checkpoint_sparsity(*paths, thresholds=(0.0,)).total.strict["0"] < 1
    rounded = checkpoint_sparsity(*paths, thresholds=(0.0,), round_before=True)
    assert rounded.total.strict["0"] == 1
    assert rounded.dtypes == ("float32", "bfloat16")


def test_other_architectures_are_refused_by_the_tensor(tmp_path):
    before, _ = _pair(tmp_path)
    tiny.llama(3, width=64).save_pretrained(tmp_path / "wider")
    with pytest.raises(CheckpointError, match=r"has shape .* and .* in .*wider"):
        checkpoint_sparsity(before, tmp_path / "wider", thresholds=(0.0,))
    tiny.llama(3, layers=3).save_pretrained(tmp_path / "deeper")
    with pytest.raises(CheckpointError, match=r"layers\.2.* is in .*deeper but not in"):
        checkpoint_sparsity(before, tmp_path / "deeper", thresholds=(0.0,))


def test_the_verb_prints_every_threshold_and_group(tmp_path):
    before, after = _pair(tmp_path)
    document = json.loads(invoke("sparsity", before, after, after, "--json").stdout)
    record = document["tuned"][str(after)]
    assert set(record["total"]["strict"]) == {"0", "1e-08", "1e-06", "1e-05"}
    assert {"0", "1", "embedding", "head", "norm"} == set(record["by_layer"])
    text = invoke("sparsity", before, after).stdout
    assert "matrix down" in text


def test_a_folder_without_weights_is_named(tmp_path):
    result = invoke("sparsity", tmp_path, tmp_path)
    assert result.exit_code == 2
    assert "safetensors" in result.stderr


def test_a_cut_checkpoint_is_named(tmp_path):
    before, after = _pair(tmp_path)
    file = after / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    result = invoke("sparsity", before, after)
    assert result.exit_code == 2
    assert str(file) in result.stderr


# ---------------------------------------------------------------- the sandbox's own models


def test_a_sandbox_model_is_built_and_then_left_alone(tmp_path):
    arguments = ("sandbox", "build", "naive", "--seed", 7, "--scale", 0.0004, "--no-evaluate")
    result = invoke(*arguments, "-o", tmp_path)
    assert result.exit_code == 0, result.stderr
    folder = tmp_path / "naive-7"
    weights = (folder / "model.safetensors").read_bytes()
    again = invoke(*arguments, "-o", tmp_path)
    assert "step" not in again.stderr
    assert (folder / "model.safetensors").read_bytes() == weights


def test_an_unknown_sandbox_model_is_refused(tmp_path):
    result = invoke("sandbox", "build", "--only", "wizard", "-o", tmp_path)
    assert result.exit_code == 2
    assert "teacher, components, latent, naive" in result.stderr


def test_two_trained_models_are_also_compared_with_each_other(tmp_path):
    before, after = _pair(tmp_path)
    arguments = ("sparsity", before, after, tmp_path / "before", "--ranks", "--json")
    document = json.loads(invoke(*arguments).stdout)
    assert document["overlaps"] == []  # the second did not move
    assert document["tuned"][str(after)]["ranks"]["all"]["matrices"] > 0
    shards = tmp_path / "shards"
    AutoModelForCausalLM.from_pretrained(after).save_pretrained(shards, max_shard_size="20KB")
    (overlap,) = json.loads(invoke("sparsity", before, after, shards, "--json").stdout)["overlaps"]
    assert overlap["overlap"] == overlap["jaccard"] == 1.0
    assert "Jaccard 1.0000" in invoke("sparsity", before, after, shards).stdout


def test_a_table_of_pairs_compares_those_that_are_here(tmp_path):
    before, after = _pair(tmp_path)
    table = tmp_path / "pairs.csv"
    table.write_text(
        "stage,base,tuned,lr,note\n"
        f"SFT,{before},{after},1e-5,ours\n"
        "DPO,nobody/base-of-no-name,nobody/tuned-of-no-name,,\n"
    )
    here, gone = json.loads(invoke("sparsity", "--table", table, "--json").stdout)
    alone = json.loads(invoke("sparsity", before, after, "--json").stdout)
    assert here["sparsity"] == alone["tuned"][str(after)]
    assert gone["sparsity"] is None
    assert gone["missing"] == ["nobody/base-of-no-name", "nobody/tuned-of-no-name"]
    text = invoke("sparsity", "--table", table).stdout
    assert "undisclosed" in text
    assert "not on this machine" in text


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("sparsity",), "BASE"),
        (("sparsity", "a", "--table", "t.csv"), "not both"),
        (("sparsity", "--table", "gone.csv"), "gone.csv"),
        (("sparsity", "a", "b", "--merge-dtype", "int4"), "int4"),
    ],
)
def test_sparsity_names_what_is_missing(arguments, word):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert word in result.stderr

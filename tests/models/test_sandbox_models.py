import json
import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fractionate.models.sandbox import (
    NUMBER_PERIODS,
    SHIPPED,
    STUDENT,
    TEACHER,
    Architecture,
    new_model,
    save,
    shipped_folder,
    tokenizer,
)
from fractionate.rng import borrow_global
from fractionate.tasks.countdown import extract_answer, verify
from fractionate.tasks.sandbox.vocabulary import BOS_ID, EOS_ID, PAD_ID, TOKENS, encode

TINY = Architecture(hidden=32, layers=2, heads=2, feed_forward=48)
ANSWER = "<think> 56 / 7 = 8 : 7 1 + </think> <answer> 7 + 1 = 8 , 8 * 7 = 56 </answer>"
QUESTION = {"role": "user", "content": "cd 7 7 1 : 56 ="}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    save(new_model(TINY, seed=3), path)
    return path


def test_tokenizer_round_trips_every_word() -> None:
    words = tokenizer()
    text = " ".join(token for token in TOKENS if not token.endswith("os>") and token != "<pad>")
    ids = words(text)["input_ids"]
    assert ids == encode(text.split())
    assert words.decode(ids, skip_special_tokens=True) == text


def test_the_chat_template_writes_bos_and_content_and_ends_an_assistant_turn() -> None:
    words = tokenizer()
    prompt = words.apply_chat_template([QUESTION], add_generation_prompt=True)["input_ids"]
    assert prompt == [BOS_ID, *encode(["cd", "7", "7", "1", ":", "56", "="])]
    turn = {"role": "assistant", "content": ANSWER}
    whole = words.apply_chat_template([QUESTION, turn])["input_ids"]
    assert whole == [*prompt, *encode(ANSWER.split()), EOS_ID]


def test_decoded_completions_pass_the_plain_text_verifier() -> None:
    words = tokenizer()
    text = words.decode([*encode(ANSWER.split()), EOS_ID, PAD_ID], skip_special_tokens=True)
    assert verify(extract_answer(text), (7, 7, 1), 56).ok


def test_an_unknown_word_raises_instead_of_becoming_something_else() -> None:
    with pytest.raises(Exception, match="UNK"):
        tokenizer()("seven")


@pytest.mark.parametrize(("architecture", "parameters"), [(TEACHER, 610_176), (STUDENT, 168_384)])
def test_the_models_have_the_stated_sizes(architecture: Architecture, parameters: int) -> None:
    assert sum(p.numel() for p in new_model(architecture, seed=0).parameters()) == parameters


def test_a_new_model_is_a_function_of_its_seed_and_leaves_the_global_state_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = (new_model(TINY, seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_numbers_start_on_circles_with_the_stated_periods() -> None:
    embedding = new_model(TINY, seed=1).get_input_embeddings().weight.detach().double()
    scale = 1.4 / math.sqrt(TINY.hidden)
    for place, period in enumerate(NUMBER_PERIODS):
        angle = 2 * math.pi * 31 / period
        expected = torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64) * scale
        torch.testing.assert_close(
            embedding[31, 2 * place : 2 * place + 2], expected, atol=1e-6, rtol=0
        )


def test_auto_classes_load_the_folder_with_the_same_logits(folder: Path) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(folder).eval()
    words = AutoTokenizer.from_pretrained(folder)
    inputs = words.apply_chat_template([QUESTION], return_tensors="pt")["input_ids"]
    original = new_model(TINY, seed=3).eval()
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=inputs).logits, original(input_ids=inputs).logits)
    assert words.decode(inputs[0], skip_special_tokens=True) == QUESTION["content"]


def test_the_folder_says_how_to_stop_and_to_pad(folder: Path) -> None:
    generation = json.loads((folder / "generation_config.json").read_text())
    assert (generation["eos_token_id"], generation["pad_token_id"]) == (EOS_ID, PAD_ID)
    assert (folder / "model.safetensors").exists()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]


CHECKPOINTS = ("teacher-0", "components-0", "components-1", "components-2", "latent-0", "naive-0")


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_shipped_checkpoints_load_and_say_where_they_come_from(checkpoint: str) -> None:
    name, seed = checkpoint.split("-")
    folder = shipped_folder(name, int(seed))
    model = AutoModelForCausalLM.from_pretrained(folder)
    expected = TEACHER if name == "teacher" else STUDENT
    assert (model.config.hidden_size, model.config.intermediate_size) == (
        expected.hidden,
        expected.feed_forward,
    )
    assert len(AutoTokenizer.from_pretrained(folder)) == len(TOKENS)
    origin = json.loads((folder / "origin.json").read_text())
    assert (origin["recipe"], origin["seed"]) == (name, int(seed))
    assert set(origin["evaluation"]) == {"selection", "test"}


def test_shipped_checkpoints_are_small() -> None:
    size = sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file())
    assert size < 12e6


def test_a_checkpoint_that_is_not_shipped_is_refused_with_the_list() -> None:
    with pytest.raises(ValueError, match=r"components-0.*teacher-0"):
        shipped_folder("teacher", 99)


def test_the_words_of_the_second_family_have_other_ids_and_the_same_laws(tmp_path: Path) -> None:
    small = Architecture(hidden=32, layers=1, heads=4, feed_forward=48, kv_heads=2, family="qwen")
    model = new_model(small, seed=1)
    with borrow_global(3, "biases"), torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    save(model, tmp_path)
    loaded, words = (
        kind.from_pretrained(tmp_path) for kind in (AutoModelForCausalLM, AutoTokenizer)
    )
    ids = words.convert_tokens_to_ids(QUESTION["content"].split())
    assert ids != encode(QUESTION["content"].split())
    own = model(torch.tensor([encode(QUESTION["content"].split())])).logits
    theirs = loaded(torch.tensor([ids])).logits
    order = torch.tensor(words.convert_tokens_to_ids(list(TOKENS)))
    torch.testing.assert_close(theirs[..., order], own)
    assert words.decode(ids) == QUESTION["content"]
    assert len(words) == len(TOKENS)
    assert loaded.config.eos_token_id == words.eos_token_id == words.convert_tokens_to_ids("<eos>")

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from fractionate.models.load import ModelLoadError, load_model, load_tokenizer, save_model
from tiny import llama, save_pair, tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_pair(tmp_path)[0]


def test_a_saved_model_comes_back_exactly(tmp_path: Path):
    module = llama(3)
    save_model(module, tokenizer(), tmp_path / "saved")
    model = load_model(tmp_path / "saved")
    assert not model.module.training
    assert model.source == str(tmp_path / "saved")
    assert (model.stop_ids, model.end_id, model.pad_id, model.vocab_size) == ((2,), 2, 0, 32)
    for name, weight in module.state_dict().items():
        assert torch.equal(model.module.state_dict()[name], weight), name
    assert model.tokenizer.chat_template == tokenizer().chat_template


def test_a_saved_folder_is_plain_transformers(folder: Path):
    assert (
        AutoModelForCausalLM.from_pretrained(folder).num_parameters() == llama(1).num_parameters()
    )


@pytest.mark.parametrize("tied", [False, True])
def test_a_given_state_takes_the_place_of_the_weights(tmp_path: Path, tied: bool):
    module, other = (llama(seed, tie_word_embeddings=tied) for seed in (1, 2))
    state = {name: weight.detach() for name, weight in other.named_parameters()}
    save_model(module, tokenizer(), tmp_path, state=state)
    loaded = load_model(tmp_path).module
    for name, weight in other.named_parameters():
        assert torch.equal(loaded.get_parameter(name), weight), name


@pytest.mark.parametrize(
    ("name", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)]
)
def test_dtype_is_that_of_the_weights(folder: Path, name: str, dtype: torch.dtype):
    assert load_model(folder, dtype=name).module.dtype == dtype


def test_a_given_tokenizer_is_used(folder: Path):
    mine = tokenizer()
    assert load_model(folder, tokenizer=mine).tokenizer is mine


def test_an_unknown_dtype_is_named(folder: Path):
    with pytest.raises(ModelLoadError, match="dtype 'float8' is unknown"):
        load_model(folder, dtype="float8")


def test_a_missing_folder_is_named(tmp_path: Path):
    with pytest.raises(ModelLoadError, match="nothing here: no such folder"):
        load_model(tmp_path / "nothing here")


def test_a_folder_without_config_is_named(tmp_path: Path):
    with pytest.raises(ModelLoadError, match=r"no config\.json"):
        load_model(tmp_path)
    with pytest.raises(ModelLoadError, match=r"no config\.json"):
        load_tokenizer(tmp_path)


def test_weights_cut_short_are_named(folder: Path):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelLoadError, match=r"student: .*again"):
        load_model(folder)


def test_missing_weights_are_named(folder: Path):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"student: cannot be loaded .*complete"):
        load_model(folder)


def test_a_missing_tensor_is_no_random_tensor(folder: Path):
    state = dict(llama(1).state_dict())
    del state["model.layers.1.mlp.up_proj.weight"]
    save_model(llama(1), tokenizer(), folder, state=state)
    with pytest.raises(ModelLoadError, match=r"lack 1 tensors, first 'model\.layers\.1"):
        load_model(folder)


@pytest.mark.parametrize("text", ["{", json.dumps({"model_type": "no-such-model"})])
def test_an_unusable_config_is_named(folder: Path, text: str):
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelLoadError, match="student: cannot be loaded"):
        load_model(folder)


def test_a_hub_that_cannot_be_reached_is_explained():
    with pytest.raises(ModelLoadError, match=r"nobody/no-model: cannot be loaded.*HF_HOME"):
        load_model("nobody/no-model")


def test_no_token_appears_in_a_message(monkeypatch: pytest.MonkeyPatch, folder: Path):
    def refuse(*_args, **_kwargs):
        raise OSError("401 for token hf_abcDEF123")

    monkeypatch.setattr("fractionate.models.load.AutoTokenizer.from_pretrained", refuse)
    with pytest.raises(ModelLoadError) as raised:
        load_tokenizer(folder)
    assert "hf_abcDEF123" not in str(raised.value)
    assert "401" in str(raised.value)


def test_a_missing_gguf_file_is_named(tmp_path: Path):
    with pytest.raises(ModelLoadError, match=r"m\.gguf: no such file"):
        load_model(tmp_path / "m.gguf")


def test_a_gguf_file_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ModelLoadError, match="pip install gguf"):
        load_model(tmp_path / "m.gguf")


def test_a_corrupt_gguf_file_is_named(tmp_path: Path):
    pytest.importorskip("gguf")
    (tmp_path / "m.gguf").write_bytes(b"GGUF but not really")
    with pytest.raises(ModelLoadError, match=r"m\.gguf: cannot be loaded"):
        load_model(tmp_path / "m.gguf")

"""Which kernel decodes is settled by the plan and is in every key."""

import json
from pathlib import Path

import pytest

from fractionate.config import Study, StudyFileError
from fractionate.study import describe, kernels
from fractionate.study.identity import shipped_checkpoints
from fractionate.study.kernels import settled_kernel
from fractionate.study.plan import make_plan

LLAMA = str(shipped_checkpoints() / "teacher-0")


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were a compiler, whatever this machine has."""
    monkeypatch.setattr(kernels, "find_compiler", lambda: "/usr/bin/cc")


def folder(path: Path, **config) -> str:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def settle(wanted="auto", models=(LLAMA,), device="cpu", threads=1) -> str:
    return settled_kernel(wanted, models, device=device, threads=threads)


def test_auto_is_native_for_llamas_on_one_thread_of_a_cpu():
    assert settle() == "native"
    assert settle(models=(LLAMA, "Qwen/Qwen2.5-1.5B-Instruct")) == "native"
    assert settle(threads=2) == "torch"
    assert settle(device="cuda") == "torch"


@pytest.mark.parametrize("wanted", ["torch", "compiled"])
def test_what_needs_no_c_is_taken_at_its_word(wanted: str):
    assert settle(wanted) == wanted
    assert settle(wanted, device="cuda", models=("somebody/else",)) == wanted


def test_auto_is_torch_without_a_compiler(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernels, "find_compiler", lambda: None)
    assert settle() == "torch"
    with pytest.raises(StudyFileError, match=r"kernel.*no C compiler.*torch"):
        settle("native")


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "gpt2"},
        {"model_type": "llama", "hidden_act": "gelu"},
        {"model_type": "llama", "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {"model_type": "llama", "rope_parameters": {"rope_type": "longrope"}},
        {"model_type": "qwen2", "use_sliding_window": True},
        {"model_type": "qwen2", "layer_types": ["full_attention", "sliding_attention"]},
    ],
)
def test_other_architectures_run_in_torch(tmp_path: Path, config):
    source = folder(tmp_path / "model", **config)
    assert settle(models=(LLAMA, source)) == "torch"
    with pytest.raises(StudyFileError, match="static kind"):
        settle("native", models=(LLAMA, source))


def test_an_unknown_hub_model_runs_in_torch():
    assert settle(models=(LLAMA, "somebody/something")) == "torch"


def test_native_on_a_gpu_is_an_error():
    with pytest.raises(StudyFileError, match="for CPUs"):
        settle("native", device="cuda")


def test_the_plan_prints_the_kernel_and_keys_hold_it():
    study = Study.model_validate({"name": "kernels", "world": {}, "seeds": [0]})
    native = make_plan(study)
    torch = make_plan(study.model_copy(update={"kernel": "torch"}))
    assert "kernel: native" in native.describe()
    assert "kernel: torch" in torch.describe()
    assert {stage.execution["kernel"] for stage in native.stages} == {"native"}
    assert native.key != torch.key
    auto = make_plan(study.model_copy(update={"kernel": "native"}))
    assert auto.key == native.key


@pytest.mark.parametrize(
    ("flags", "slow"), [("fpu avx2 fma", True), ("fpu avx512f avx512_bf16", False), ("", False)]
)
def test_products_of_bfloat16_are_looked_up(flags: str, slow: bool, tmp_path: Path):
    path = tmp_path / "cpuinfo"
    path.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: none\n")
    assert kernels.slow_in_bfloat16(path) == slow
    assert not kernels.slow_in_bfloat16(tmp_path / "missing")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_plan_warns_of_slow_bfloat16(dtype: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(describe, "slow_in_bfloat16", lambda: True)
    study = {"name": "narrow", "world": {}, "seeds": [0], "optimizer": {"compute_dtype": dtype}}
    text = make_plan(Study.model_validate(study)).describe()
    assert ("optimizer.compute_dtype: float32" in text) == (dtype == "bfloat16")

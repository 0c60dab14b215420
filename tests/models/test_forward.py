"""The packed forward pass computes what the transformers module computes, row by row."""

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.models.llama import modeling_llama
from transformers.models.qwen2 import modeling_qwen2

from fractionate.models import attention, forward
from fractionate.models.attention import Padding
from fractionate.models.forward import blocks_of, kept_per_token, packed_hidden, runs_packed
from fractionate.models.native.compiler import find_compiler
from fractionate.models.native.parts import NativeParts
from fractionate.rng import borrow_global
from tiny import llama

TEXTS = [[5, 6, 7, 8, 9], [3, 30, 4] * 47, [4, 7], [9, 8, 7, 1, 2, 3] * 50, [7], [1, 0, 2]]
WANTED = [3, 100, 1, 260, 1, 3]
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler here")


def _shaken(module):
    """Every parameter at random, biases and norms among them."""
    with borrow_global(5, "shaken"), torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return module


def qwen2():
    config = Qwen2Config(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    with borrow_global(0, "qwen"):
        return Qwen2ForCausalLM(config).eval()


MODELS = {
    "grouped queries": llama,
    "tied head": lambda: llama(tie_word_embeddings=True),
    "one key head": lambda: llama(num_key_value_heads=1, layers=1),
    "biases": lambda: llama(attention_bias=True, mlp_bias=True),
    "wide heads": lambda: llama(head_dim=16),
    "scaled positions": lambda: llama(
        rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
    ),
    "qwen2": qwen2,
}


def _wide_norm(self, hidden_states):
    """RMSNorm in the dtype of its input, so that float64 is float64 throughout."""
    factor = torch.rsqrt(hidden_states.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
    return self.weight * (hidden_states * factor)


@pytest.fixture
def wide_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    for norm in (modeling_llama.LlamaRMSNorm, modeling_qwen2.Qwen2RMSNorm):
        monkeypatch.setattr(norm, "forward", _wide_norm)


def _reference(module) -> torch.Tensor:
    rows = [
        module.base_model(input_ids=torch.tensor([text])).last_hidden_state[0, -count:]
        for text, count in zip(TEXTS, WANTED, strict=True)
    ]
    return torch.cat(rows)


def _gradients(module, hidden: torch.Tensor) -> dict[str, torch.Tensor]:
    module.zero_grad()
    upstream = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1))
    hidden.backward(upstream.to(hidden.dtype))
    return {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}


def _error(left: dict, right: dict) -> float:
    assert set(left) == set(right)
    return max(float((left[n] - right[n]).norm() / (right[n].norm() + 1e-30)) for n in left)


@pytest.mark.usefixtures("wide_norms")
@pytest.mark.parametrize("name", MODELS)
def test_hidden_states_and_gradients_are_those_of_the_module(name: str):
    module = _shaken(MODELS[name]()).double()
    assert runs_packed(module)
    packed, reference = packed_hidden(module, TEXTS, WANTED), _reference(module)
    torch.testing.assert_close(packed, reference, rtol=1e-10, atol=1e-10)
    assert _error(_gradients(module, packed), _gradients(module, reference)) < 1e-10


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_narrower_dtypes_differ_by_rounding(dtype: torch.dtype, error: float):
    module = _shaken(llama()).to(dtype)
    packed, reference = packed_hidden(module, TEXTS, WANTED), _reference(module)
    assert packed.dtype == dtype
    assert _error({"": packed.detach()}, {"": reference.detach()}) < error
    assert _error(_gradients(module, packed), _gradients(module, reference)) < error


def _as_wide(name: str, kernel: str) -> float:
    """How far the gradients of a float32 model are from those in float64."""
    wide, narrow = (_shaken(MODELS[name]()).to(dtype) for dtype in (torch.float64, torch.float32))
    narrow.load_state_dict(wide.state_dict())
    found = _gradients(narrow, packed_hidden(narrow, TEXTS, WANTED, kernel=kernel))
    return _error(found, _gradients(wide, packed_hidden(wide, TEXTS, WANTED)))


@needs_compiler
@pytest.mark.parametrize("name", MODELS)
def test_the_native_kernel_rounds_no_worse_than_torch(name: str):
    assert _as_wide(name, "native") < 2 * _as_wide(name, "torch")


@needs_compiler
@pytest.mark.parametrize("wanted", [WANTED, [len(text) for text in TEXTS], [1] * len(TEXTS)])
def test_the_native_kernel_gives_the_same_hidden_states(wanted: list[int]):
    module = _shaken(llama())
    expected = packed_hidden(module, TEXTS, wanted)
    found = packed_hidden(module, TEXTS, wanted, kernel="native")
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@needs_compiler
def test_the_native_kernel_computes_a_row_alike_in_any_company():
    parts, generator = NativeParts(), torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(150, heads, 8, generator=generator) for heads in (4, 2, 2))
    alone = [parts.attend(q[:n], k[:n], v[:n], Padding.of([n], [n])) for n in (150, 40)]
    both = parts.attend(
        torch.cat([q, q[:40]]),
        torch.cat([k, k[:40]]),
        torch.cat([v, v[:40]]),
        Padding.of([150, 40], [150, 40]),
    )
    assert torch.equal(both, torch.cat(alone))


@needs_compiler
def test_the_native_kernel_does_not_hide_a_broken_weight():
    module = llama()
    with torch.no_grad():
        module.model.layers[0].mlp.up_proj.weight[0, 0] = torch.nan
    hidden = packed_hidden(module, TEXTS, WANTED, kernel="native")
    assert not hidden.isfinite().any()


@needs_compiler
def test_the_native_kernel_leaves_other_dtypes_to_torch():
    module = llama().bfloat16()
    found = packed_hidden(module, TEXTS, WANTED, kernel="native")
    assert torch.equal(found, packed_hidden(module, TEXTS, WANTED))


def test_bfloat16_is_as_close_to_the_exact_gradients_as_the_modules_own():
    exact = _shaken(llama())
    narrow = _shaken(llama()).bfloat16()
    exact.load_state_dict(narrow.state_dict())
    truth = _gradients(exact, packed_hidden(exact, TEXTS, WANTED))
    ours = _gradients(narrow, packed_hidden(narrow, TEXTS, WANTED))
    theirs = _gradients(narrow, _reference(narrow))
    assert _error(ours, truth) < 1.2 * _error(theirs, truth)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_checkpointing_changes_no_bit(dtype: torch.dtype):
    module = llama().to(dtype)
    kept = packed_hidden(module, TEXTS, WANTED)
    again = packed_hidden(module, TEXTS, WANTED, checkpoint=True)
    assert torch.equal(kept, again)
    expected, found = _gradients(module, kept), _gradients(module, again)
    assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())


@pytest.mark.usefixtures("wide_norms")
@pytest.mark.parametrize("size", [1, 150, 10**6])
def test_blocks_of_any_size_give_the_same(size: int, monkeypatch: pytest.MonkeyPatch):
    module = llama().double()
    reference = packed_hidden(module, TEXTS, WANTED)
    expected = _gradients(module, reference)
    monkeypatch.setattr(forward, "BLOCK_TOKENS", size)
    packed = packed_hidden(module, TEXTS, WANTED)
    torch.testing.assert_close(packed, reference, rtol=1e-12, atol=1e-12)
    assert _error(_gradients(module, packed), expected) < 1e-12


def test_without_gradients_the_hidden_states_are_the_same():
    module = llama().double()
    with torch.no_grad():
        found = packed_hidden(module, TEXTS, WANTED)
    torch.testing.assert_close(found, packed_hidden(module, TEXTS, WANTED), rtol=1e-12, atol=1e-12)


def test_rows_do_not_see_each_other_and_may_come_in_any_order():
    module = llama().double()
    order = [3, 0, 5]
    found = packed_hidden(module, [TEXTS[i] for i in order], [WANTED[i] for i in order])
    alone = [packed_hidden(module, [TEXTS[i]], [WANTED[i]]) for i in order]
    torch.testing.assert_close(found, torch.cat(alone), rtol=1e-12, atol=1e-12)


def test_frozen_parameters_get_no_gradient():
    module = llama()
    module.model.layers[0].requires_grad_(False)
    module.model.embed_tokens.requires_grad_(False)
    found = _gradients(module, packed_hidden(module, TEXTS, WANTED))
    assert not any("layers.0" in name or "embed" in name for name in found)
    assert any("layers.1" in name for name in found)


def test_blocks_hold_every_row_once_within_the_limit():
    lengths = [300, 200, 20, 900, 5]
    blocks = blocks_of(lengths, [1] * 5, 512)
    assert [row.stop - row.start for block in blocks for row in block.rows] == lengths
    assert [block.tokens for block in blocks] == [500, 20, 900, 5]


def test_rows_of_a_block_are_of_similar_length():
    blocks = blocks_of([400, *[2] * 20], [1] * 21, 512)
    padded = [max(r.stop - r.start for r in b.rows) * len(b.rows) for b in blocks]
    assert max(padded) <= 2 * 512


def test_attention_weights_exist_for_one_block_of_queries_only(monkeypatch):
    largest = []
    softmax = torch.softmax
    monkeypatch.setattr(
        attention.torch, "softmax", lambda x, d: largest.append(x.shape[1]) or softmax(x, d)
    )
    padding = attention.Padding.of([300], [300])
    attention.attend(
        torch.randn(300, 4, 8), torch.randn(300, 2, 8), torch.randn(300, 2, 8), padding
    )
    assert max(largest) == 2 * attention.QUERY_BLOCK


def test_what_a_layer_keeps_is_counted():
    """Tensors that the graph holds on to, against the figure that decides on checkpointing."""
    module = llama(layers=3)
    hidden = packed_hidden(module, [[5] * 64], [64])
    node, kept = hidden.grad_fn, 0
    seen, queue = set(), [node]
    while queue:
        node = queue.pop()
        if node in seen or node is None:
            continue
        seen.add(node)
        queue += [parent for parent, _ in node.next_functions]
        if type(node).__name__ == "_PackedLayerBackward":
            kept += node.saved_tensors[0].numel()
            kept += sum(t.numel() for block in node.kept for t in block)
    assert kept == 64 * kept_per_token(module.config)


def _hooked():
    module = llama()
    module.model.layers[0].mlp.register_forward_hook(lambda _module, _inputs, output: output)
    return module


def _with_a_foreign_layer():
    class Scaled(torch.nn.Linear):
        """Stands for an adapter."""

    module = llama()
    module.model.layers[0].mlp.up_proj = Scaled(32, 64, bias=False)
    return module


class Subclass(LlamaForCausalLM):
    """May compute anything."""


UNSUPPORTED = {
    "another architecture": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=32, n_embd=32, n_layer=1, n_head=2)
    ),
    "a subclass": lambda: Subclass(llama().config),
    "an adapter": _with_a_foreign_layer,
    "a hook": _hooked,
    "positions that depend on the length": lambda: llama(
        rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    ),
    "another activation": lambda: llama(hidden_act="gelu"),
    "dropout": lambda: llama(attention_dropout=0.1).train(),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_other_models_run_their_own_forward_pass(name: str):
    assert not runs_packed(UNSUPPORTED[name]())


def test_sliding_windows_run_the_modules_own_forward_pass():
    config = qwen2().config.to_dict()
    config |= {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    config.pop("layer_types")
    assert not runs_packed(Qwen2ForCausalLM(Qwen2Config(**config)))

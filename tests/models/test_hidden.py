import shutil
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from cases import BUGS
from fractionate.models.hidden import (
    backbone,
    check_linear_head,
    completion_hidden,
    evaluating,
    head_weight,
    micro_batches,
)
from fractionate.rng import borrow_global
from tiny import llama

PROMPTS = [[1, 5, 9], [1, 20, 21, 22, 23], [7], [1, 2]]


@dataclass(frozen=True)
class Batch:
    tokens: Tensor
    lengths: Tensor


BATCH = Batch(
    torch.tensor([[4, 5, 6, 2], [8, 2, 0, 0], [9, 9, 9, 9], [3, 0, 0, 0]]),
    torch.tensor([4, 2, 4, 1]),
)


def gpt2(**changes) -> GPT2LMHeadModel:
    settings = {"vocab_size": 50, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}
    with borrow_global(0, "gpt2"):
        return GPT2LMHeadModel(GPT2Config(**settings, **changes)).double().eval()


def alone(module, row: int) -> Tensor:
    """Hidden states of one row without any padding."""
    length = int(BATCH.lengths[row])
    ids = torch.tensor([PROMPTS[row] + BATCH.tokens[row, :length].tolist()])
    hidden = backbone(module)(input_ids=ids, attention_mask=torch.ones_like(ids))
    return hidden.last_hidden_state[0, len(PROMPTS[row]) - 1 : -1]


@pytest.mark.parametrize("make", [lambda: llama().double(), gpt2], ids=["llama", "gpt2"])
def test_hidden_states_predict_each_completion_token(make):
    module = make()
    found = completion_hidden(module, PROMPTS, BATCH)
    expected = torch.cat([alone(module, row) for row in range(4)])
    assert found.shape[0] == int(BATCH.lengths.sum())
    assert torch.allclose(found, expected, atol=1e-6)


def test_rows_may_be_chosen_and_ordered():
    module = llama().double()
    found = completion_hidden(module, PROMPTS, BATCH, rows=[2, 0])
    assert torch.allclose(found, torch.cat([alone(module, 2), alone(module, 0)]), atol=1e-6)


def test_logits_are_hidden_states_times_head():
    module = llama().double()
    ids = torch.tensor([PROMPTS[0] + BATCH.tokens[0].tolist()])
    logits = module(ids).logits[0, len(PROMPTS[0]) - 1 : -1]
    found = completion_hidden(module, PROMPTS, BATCH, rows=[0]) @ head_weight(module).T
    assert torch.allclose(found, logits, atol=1e-6)


def test_a_one_token_completion_has_one_loss_token():
    expected = BUGS["B2"]["expect"]["loss_tokens_of_one_token_completion"]
    assert completion_hidden(llama(), PROMPTS, BATCH, rows=[3]).shape[0] == expected


def test_an_empty_completion_is_an_empty_slice():
    expected = BUGS["B28"]["expect"]["loss_tokens"]
    empty = Batch(torch.tensor([[3, 4, 5], [3, 4, 5]]), torch.tensor([0, 2]))
    assert completion_hidden(llama(), PROMPTS[:2], empty, rows=[0]).shape == (expected, 32)
    assert completion_hidden(llama(), PROMPTS[:2], empty).shape == (2, 32)


def test_padding_does_not_shift_absolute_positions():
    """The reported fault is left padding without position ids; no row depends on its padding."""
    case = BUGS["B25"]
    module, prompt = gpt2(), case["input"]["prompt_ids"]
    long = Batch(torch.tensor([[4, 5] + [0] * 18, list(range(20))]), torch.tensor([2, 20]))
    padded = completion_hidden(module, [prompt, prompt], long)[:2]
    alone = completion_hidden(module, [prompt], Batch(torch.tensor([[4, 5]]), torch.tensor([2])))
    difference = ((padded - alone) @ head_weight(module).T).abs().max().detach()
    assert float(difference) <= case["expect"]["max_abs_difference_at_most"]


def test_pad_ids_inside_a_prompt_are_read():
    """Masks come from lengths: a real token with the pad id is attended."""
    module = llama().double()
    batch = Batch(torch.tensor([[4]]), torch.tensor([1]))
    found = [completion_hidden(module, [[1, token, 7]], batch) for token in (0, 3)]
    assert not torch.allclose(*found)


def test_gradients_flow_to_every_weight_of_the_body():
    module = llama()
    completion_hidden(module, PROMPTS, BATCH).square().sum().backward()
    assert all(p.grad is not None for p in backbone(module).parameters())


def test_the_mode_of_the_module_is_left_alone():
    module = gpt2(resid_pdrop=0.5).train()
    first, second = (completion_hidden(module, PROMPTS, BATCH) for _ in range(2))
    assert module.training
    assert not torch.allclose(first, second)
    with evaluating(module):
        first, second = (completion_hidden(module, PROMPTS, BATCH) for _ in range(2))
    assert module.training
    assert torch.equal(first, second)


def test_prompts_and_completions_must_match():
    with pytest.raises(ValueError, match="3 prompts for 4 completions"):
        completion_hidden(llama(), PROMPTS[:3], BATCH)
    with pytest.raises(ValueError, match="no token"):
        completion_hidden(llama(), [[1], [], [1], [1]], BATCH)


def test_a_tied_head_is_the_embedding():
    module = llama(tie_word_embeddings=True)
    assert head_weight(module) is module.get_input_embeddings().weight


def test_a_head_with_a_bias_is_refused():
    module = llama()
    module.set_output_embeddings(torch.nn.Linear(32, 32, bias=True))
    with pytest.raises(ValueError, match="bias"):
        head_weight(module)


def test_scaled_logits_are_refused():
    module = llama()
    module.config.logit_scale = 0.25
    with pytest.raises(ValueError, match=r"logit_scale is 0\.25"):
        head_weight(module)


def test_logits_that_are_not_linear_in_the_hidden_states_are_refused():
    module = llama()
    module.lm_head.register_forward_hook(lambda _module, _inputs, output: output.tanh() * 3)
    with pytest.raises(ValueError, match="not its last hidden states times its head"):
        check_linear_head(module)
    check_linear_head(llama())


@settings(derandomize=True, deadline=None, max_examples=50)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60)), max_size=30),
    budget=st.integers(1, 300),
)
def test_micro_batches_hold_every_row_once_within_the_budget(lengths, budget: int):
    prompts, completions = [p for p, _ in lengths], [c for _, c in lengths]
    groups = micro_batches(prompts, completions, budget)
    assert sorted(row for group in groups for row in group) == list(range(len(lengths)))
    for group in groups:
        longest = max(sum(lengths[row]) for row in group)
        assert len(group) == 1 or len(group) * longest <= budget


def test_packed_micro_batches_count_no_padding():
    assert micro_batches([1] * 3, [9, 4, 4], 20, packed=True) == [[0, 1, 2]]
    assert micro_batches([1] * 3, [9, 4, 4], 20) == [[0, 1], [2]]


@pytest.mark.parametrize("make", [llama, gpt2], ids=["packed", "padded"])
def test_checkpointing_changes_neither_states_nor_gradients(make):
    module = make()
    found = []
    for checkpoint in (False, True):
        module.zero_grad()
        hidden = completion_hidden(module, PROMPTS, BATCH, checkpoint=checkpoint)
        hidden.square().sum().backward()
        found.append([hidden.detach(), *(p.grad for p in backbone(module).parameters())])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    assert not any(part.training for part in module.modules())


@pytest.mark.slow
@pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler here"
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself
def test_a_compiled_forward_pass_gives_the_same_states_and_gradients():
    def run(kernel) -> list[Tensor]:
        module = llama(layers=1)
        hidden = completion_hidden(module, PROMPTS, BATCH, kernel=kernel)
        hidden.pow(3).sum().backward()
        return [hidden.detach(), *(p.grad for p in module.parameters() if p.grad is not None)]

    for ours, compiled in zip(run("torch"), run("compiled"), strict=True):
        torch.testing.assert_close(compiled, ours, rtol=1e-5, atol=1e-5 * float(ours.abs().max()))


def test_checkpointing_keeps_less_of_a_padded_model():
    """The layers' inputs stay, what lies inside them is gone until the backward pass."""
    kept = []
    for checkpoint in (False, True):
        seen: dict[int, int] = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, seen=seen: seen.setdefault(t.data_ptr(), t.numel()) and t, lambda t: t
        ):
            completion_hidden(gpt2(), PROMPTS, BATCH, checkpoint=checkpoint)
        kept.append(sum(seen.values()))
    assert kept[1] < kept[0] / 2


def test_micro_batches_put_similar_lengths_together():
    assert micro_batches([1] * 4, [9, 1, 9, 1], 20) == [[0, 2], [1, 3]]

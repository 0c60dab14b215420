"""Costs: counted from sizes and tokens, upper bounds of what a run records."""

import json
import shutil

import pytest
from fakes import make_study, make_tree, write_result
from hypothesis import given
from hypothesis import strategies as st

from fractionate.config.files import parse_study
from fractionate.study.cost import TokenCounts, estimate, flops_of, forward_flops, require_disk
from fractionate.study.dimensions import PUBLISHED, Dimensions, dimensions_of, read_dimensions
from fractionate.study.errors import StoreFullError
from fractionate.study.executors import SerialExecutor
from fractionate.study.plan import make_plan
from fractionate.study.store import Store
from fractionate.study.units import counted, human_bytes, human_count

SMALL = Dimensions(
    hidden=4, layers=2, heads=2, kv_heads=1, head_dim=2, intermediate=8, vocabulary=10, tied=True
)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("meta-llama/Llama-3.2-1B", 1_235_814_400),
        ("meta-llama/Llama-3.1-8B", 8_030_261_248),
        ("Qwen/Qwen2.5-1.5B", 1_543_714_304),
        ("Qwen/Qwen2.5-3B", 3_085_938_688),
        ("Qwen/Qwen2.5-7B", 7_615_616_512),
    ],
)
def test_published_sizes_give_the_published_parameter_counts(name, parameters):
    assert PUBLISHED[name].parameters == parameters
    assert dimensions_of(f"{name}-Instruct") == PUBLISHED[name]


def test_sandbox_teacher_has_the_parameters_of_its_recipe(tmp_path):
    make_tree(tmp_path / "models")
    sizes = dimensions_of(str(tmp_path / "models" / "teacher-0"))
    assert sizes is not None
    assert sizes.parameters == 610_176


def test_small_model_by_hand():
    attention = 4 * 4 * 2 + 4 * 2 * 2  # queries and output, keys and values
    block = attention + 3 * 4 * 8 + 2 * 4
    assert SMALL.block_parameters == 2 * block + 4
    assert SMALL.parameters == 2 * block + 4 + 40
    assert SMALL.cache_per_token == 2 * 2 * 1 * 2


def test_a_forward_token_costs_two_per_parameter_and_its_attention():
    blocks = 2 * SMALL.block_parameters
    assert forward_flops(SMALL, 1, context=0, laws=0) == blocks
    assert forward_flops(SMALL, 1, context=0, laws=1) == blocks + 2 * 40
    assert forward_flops(SMALL, 1, context=5, laws=0) == blocks + 4 * 2 * 2 * 2 * 5


def test_training_costs_three_forward_passes():
    def cost(**tokens):
        return flops_of(
            TokenCounts(**tokens), student=SMALL, teacher=SMALL, writer=SMALL, context=3.0
        )

    assert cost(trained=7) == 3 * cost(scored=7) == 3 * cost(generated=7)
    assert cost(scored=7, prompts=2) > cost(scored=7)
    assert cost(prompts=2) == 0


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))
def test_costs_add_up(generated, scored, trained):
    def cost(tokens):
        return flops_of(tokens, student=SMALL, teacher=SMALL, writer=SMALL, context=3.0)

    whole = TokenCounts(generated, scored, trained)
    parts = [TokenCounts(generated), TokenCounts(scored=scored), TokenCounts(trained=trained)]
    assert sum(parts, TokenCounts()) == whole
    assert cost(whole) == pytest.approx(sum(cost(part) for part in parts))


@pytest.mark.parametrize(
    ("config", "head_dim", "kv_heads"),
    [({}, 32, 4), ({"head_dim": 16}, 16, 4), ({"num_key_value_heads": 2}, 32, 2)],
)
def test_missing_fields_of_a_configuration_take_their_meaning(tmp_path, config, head_dim, kv_heads):
    path = tmp_path / "config.json"
    sizes = {"hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
    path.write_text(json.dumps({**sizes, "intermediate_size": 8, "vocab_size": 9, **config}))
    found = read_dimensions(path)
    assert found is not None
    assert (found.head_dim, found.kv_heads, found.tied) == (head_dim, kv_heads, False)


def test_a_configuration_of_another_kind_has_no_sizes(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    assert read_dimensions(tmp_path / "config.json") is None


def test_an_unreadable_configuration_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json cannot be read"):
        read_dimensions(tmp_path / "config.json")


def test_on_policy_cells_write_and_off_policy_cells_read(tmp_path):
    plan = make_plan(make_study(tmp_path / "models", seeds=[42]))
    costs = {cost.key: cost for cost in plan.cost().stages}
    for cell in plan.cells:
        tokens = costs[plan.cell_stages[cell.name].training].tokens
        written = 0 if cell.factors["method.rollout"] == "teacher" else 4 * 2 * 32
        assert (tokens.generated, tokens.scored, tokens.trained) == (written, written, 256)
    (corpus,) = plan.of_kind("corpus")
    assert costs[corpus.key].tokens.generated == 4 * 2 * 32


def test_hidden_states_are_counted_where_they_are_stored(tmp_path):
    plan = make_plan(make_study(tmp_path / "models", seeds=[42]))
    (corpus,) = plan.of_kind("corpus")
    (cost,) = [cost for cost in plan.cost().stages if cost.kind == "corpus"]
    assert corpus.config["hidden"] == "stored"
    assert cost.disk >= 4 * 2 * 32 * 128 * 4


def test_a_corpus_too_large_for_the_disk_is_scored_again(tmp_path):
    budget = {"steps": 10**6, "prompts_per_step": 512}
    plan = make_plan(make_study(tmp_path / "models", seeds=[42], budget=budget))
    assert plan.of_kind("corpus")[0].config["hidden"] == "rescored"


def test_more_checkpoints_take_more_disk(tmp_path):
    def disk(**changes):
        return make_plan(make_study(tmp_path / "models", **changes)).cost().disk

    assert disk(checkpoints={"keep": [1, 2, 3]}) > disk()


def test_what_the_store_has_is_not_left_to_do(tmp_path):
    plan = make_plan(make_study(tmp_path / "models", seeds=[42]))
    store = Store(tmp_path / "runs")
    before = plan.cost(store)
    assert before.flops_left == before.flops > 0
    SerialExecutor().run(plan, store.root, write_result)
    after = estimate(plan.stages, store)
    assert after.cached == {stage.key for stage in plan.stages}
    assert after.flops_left == 0
    assert after.disk_left == 0


def test_models_of_unknown_size_are_named_and_their_tokens_counted(tmp_path):
    tree = make_tree(tmp_path / "models", vary={})
    del tree["world"]
    tree["models"] = {"student": "someone/model", "teacher": "Qwen/Qwen2.5-7B"}
    plan = make_plan(parse_study(tree))
    cost = plan.cost()
    assert cost.unknown == ("someone/model",)
    assert cost.tokens.trained > 0
    assert "models of unknown size (someone/model)" in plan.describe()


def test_a_plan_of_the_papers_models_has_plausible_figures(tmp_path):
    tree = make_tree(tmp_path / "models", vary={}, budget={"steps": 150, "prompts_per_step": 32})
    del tree["world"]
    tree |= {"lengths": {"prompt": 512, "completion": 2048}, "seeds": [42]}
    tree["models"] = {"student": "meta-llama/Llama-3.2-1B-Instruct",
                      "teacher": "meta-llama/Llama-3.1-8B-Instruct",
                      "teacher_dtype": "bfloat16"}  # fmt: skip
    (cell,) = [cost for cost in make_plan(parse_study(tree)).cost().stages if cost.kind == "cell"]
    tokens = 150 * 32 * 2048
    assert 2 * 8.0e9 * tokens < cell.flops < 8 * 8.0e9 * tokens
    assert 2 * (8.0e9 + 4 * 1.2e9) < cell.memory < 200 * 2**30


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**40, "5.0 TiB")]
)
def test_bytes_read_well(number, text):
    assert human_bytes(number) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (999, "999"), (12_345, "12.3 k"), (2e18, "2 E")]
)
def test_counts_read_well(number, text):
    assert human_count(number) == text
    assert human_count(number, "FLOP").startswith(text.split()[0])


def test_plan_and_refusal_name_the_same_room(tmp_path, monkeypatch):
    plan = make_plan(make_study(tmp_path / "models"))
    cost = plan.cost()
    room = human_bytes(cost.disk_left)
    usage = shutil.disk_usage(tmp_path)._replace(free=2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(StoreFullError, match=f"need {room} of disk at its peak, with 64.0 MiB"):
        require_disk(cost, Store(tmp_path / "runs"))
    assert f"what is to do needs {room} at its peak" in plan.describe()
    assert "64.0 MiB more kept free" in plan.describe()


@pytest.mark.parametrize(("number", "text"), [(0, "0 cells"), (1, "1 cell"), (2, "2 cells")])
def test_one_thing_is_singular(number, text):
    assert counted(number, "cell") == text

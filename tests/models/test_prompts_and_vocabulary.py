import pytest
import torch
from tokenizers.processors import TemplateProcessing

from cases import BUGS
from fractionate.models.load import LanguageModel, ModelLoadError, wrap
from fractionate.models.prompts import (
    PromptTooLongError,
    check_length,
    check_same_prompts,
    render,
    template_warnings,
    terminator,
)
from fractionate.models.vocabulary import (
    VocabularyMismatchError,
    align,
    check_dropped_mass,
    dropped_mass,
    measure_dropped_mass,
)
from tiny import llama, tokenizer

QUESTION = [{"role": "user", "content": "3 4 5"}]
CHATML = (
    "{% for m in messages %}<eos> {{ m['role'] == 'user' and '7' or '8' }} {{ m['content'] }} "
    "<end> {% endfor %}{% if add_generation_prompt %}<eos> 8{% endif %}"
)


def bos_adding():
    """A tokenizer that puts a BOS before whatever it tokenises."""
    result = tokenizer()
    result.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 1)]
    )
    return result


def test_a_template_with_bos_gives_exactly_one():
    doubling = bos_adding()
    text = "<bos> 3 4 5"
    assert doubling(text)["input_ids"].count(1) == BUGS["B23"]["faulty"]["bos_count"]
    ids = render(doubling, QUESTION)
    assert ids == [1, 6, 7, 8]
    assert ids.count(1) == BUGS["B23"]["expect"]["bos_count"]


def test_without_a_template_contents_are_joined_after_one_bos():
    plain = bos_adding()
    plain.chat_template = None
    assert render(plain, [{"role": "system", "content": "9"}, *QUESTION]) == [1, 12, 6, 7, 8]


def test_a_template_without_bos_has_none():
    bare = bos_adding()
    bare.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    assert render(bare, QUESTION) == [6, 7, 8]


def test_template_options_are_passed_on():
    dated = tokenizer()
    dated.chat_template = "{{ date }} {{ messages[0]['content'] }}"
    assert render(dated, QUESTION, {"date": "9"}) == [12, 6, 7, 8]


def test_an_empty_prompt_is_an_error():
    bare = tokenizer()
    bare.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    with pytest.raises(ValueError, match="no token"):
        render(bare, [{"role": "user", "content": ""}])


def test_a_prompt_over_the_limit_is_an_error_and_never_cut():
    case = BUGS["B29"]["input"]["second"]
    prompt = list(range(case["prompt_tokens"]))
    with pytest.raises(PromptTooLongError, match=r"'p7' has a prompt of 600.*lengths.prompt"):
        check_length(prompt, case["limit"], field="lengths.prompt", key="p7")
    check_length(prompt, case["prompt_tokens"], field="lengths.prompt", key="p7")


DATED = "{{ date_string or strftime_now('%d %b %Y') }} {{ messages[0]['content'] }}"


def templated(template):
    result = tokenizer()
    result.chat_template = template
    return result


def test_one_rendering_for_both_models_is_required():
    thinking = "{% if not enable_thinking is defined %}9 {% endif %}{{ messages[0]['content'] }}"
    plain = "{{ messages[0]['content'] }}"
    student, teacher = templated(plain), templated(thinking)
    with pytest.raises(ValueError, match=r"differ from token 0 of a prompt on: '3 4 5' for the st"):
        check_same_prompts(student, teacher, [QUESTION])
    check_same_prompts(student, teacher, [QUESTION], {"enable_thinking": False})


def test_one_rendering_may_be_the_beginning_of_the_other():
    longer = templated("{{ messages[0]['content'] }} 9")
    with pytest.raises(ValueError, match=r"differ from token 3 of a prompt on: '' .* '9' for the"):
        check_same_prompts(templated("{{ messages[0]['content'] }}"), longer, [QUESTION])


def test_a_date_in_the_prompt_is_told_until_it_is_pinned():
    (warning,) = template_warnings(templated(DATED), QUESTION)
    assert "models.chat_template_kwargs: {date_string:" in warning
    assert template_warnings(templated(DATED), QUESTION, {"date_string": "9"}) == ()


def test_an_option_that_the_template_does_not_read_is_told():
    (warning,) = template_warnings(tokenizer(), QUESTION, {"enable_thinkng": False})
    assert "models.chat_template_kwargs.enable_thinkng is not read" in warning
    bare = templated(None)
    assert template_warnings(bare, QUESTION, {"x": 1}) == ()


def with_terminator():
    result = tokenizer()
    result.add_special_tokens({"additional_special_tokens": ["<end>"]})
    result.chat_template = CHATML
    return result


def test_the_chat_template_shows_what_ends_an_answer():
    instruct = with_terminator()
    assert terminator(instruct) == instruct.convert_tokens_to_ids("<end>") != 2
    assert terminator(tokenizer()) == 2


def test_the_stop_set_is_the_union_of_all_that_name_one():
    """Base and instruct models of one family stop at different ids (Qwen2.5)."""
    case = BUGS["B22"]
    renamed = dict(zip((2, 32), case["expect"]["stop_set"], strict=True))
    module = llama(vocab_size=40)
    module.generation_config.eos_token_id = [2]
    model = wrap(module, with_terminator())
    assert [renamed[index] for index in model.stop_ids] == case["expect"]["stop_set"]
    assert model.end_id == 32


def test_a_model_that_cannot_stop_is_refused():
    endless = tokenizer()
    endless.eos_token = None
    module = llama(eos_token_id=None)
    module.generation_config.eos_token_id = None
    with pytest.raises(ModelLoadError, match="no token ends a completion"):
        wrap(module, endless)


def test_a_tokenizer_larger_than_the_model_is_refused():
    with pytest.raises(ModelLoadError, match="33 ids, but the model only 32 rows"):
        wrap(llama(), with_terminator())


# ---------------------------------------------------------------- vocabulary


def model(rows: int, tok=None) -> LanguageModel:
    return wrap(llama(vocab_size=rows), tok or tokenizer())


def test_padding_rows_are_cut_at_the_tokenizers_length():
    vocabulary = align(model(40), model(48))
    assert vocabulary.size == 32
    assert vocabulary.dropped_rows == {"student": 8, "teacher": 16}
    assert vocabulary.warnings == ()
    assert vocabulary.of(model(40)).vocab_size == 32


def test_the_smaller_width_is_an_option():
    assert align(model(40), model(48), slice="min").size == 40


def test_a_different_token_is_named_with_both_strings():
    other = tokenizer()
    core = other.backend_tokenizer
    vocabulary = core.get_vocab()
    swapped = {**vocabulary, "5": vocabulary["6"], "6": vocabulary["5"]}
    core.model = type(core.model)(swapped, unk_token="<pad>")
    with pytest.raises(VocabularyMismatchError, match=r"at id 8: it is '5' .* and '6'"):
        align(model(32), model(32, other))


def test_one_tokenizer_with_more_ids_is_named():
    longer = tokenizer()
    longer.add_tokens(["extra"])
    with pytest.raises(VocabularyMismatchError, match=r"at id 32: it is no token .* and 'extra'"):
        align(model(40), model(40, longer))


def test_different_chat_templates_are_refused():
    other = tokenizer()
    other.chat_template = "{{ bos_token }} 9 {{ messages[0]['content'] }}"
    with pytest.raises(VocabularyMismatchError, match="chat templates differ"):
        align(model(32), model(32, other))


def test_different_stop_sets_are_united_with_a_warning():
    teacher = llama()
    teacher.generation_config.eos_token_id = [2, 9]
    vocabulary = align(model(32), wrap(teacher, tokenizer()))
    assert vocabulary.stop_ids == (2, 9)
    assert len(vocabulary.warnings) == 1
    assert "the teacher stops at [9]" in vocabulary.warnings[0]
    assert vocabulary.of(model(32)).stop_ids == (2, 9)


def test_dropped_mass_is_what_the_cut_loses():
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0]])
    assert float(dropped_mass(logits, 3)) == pytest.approx(0.25)
    assert float(dropped_mass(logits, 4)) == 0.0


def test_dropped_mass_of_a_model_is_a_mean_over_positions():
    prompts = [[1, 5, 6], [1]]
    wide = model(64)
    logits = torch.cat([wide.module(torch.tensor([ids])).logits[0] for ids in prompts])
    expected = float(dropped_mass(logits.detach(), 32).mean())
    assert measure_dropped_mass(wide, prompts) == pytest.approx(expected, abs=1e-6)
    assert expected > 0.3
    assert measure_dropped_mass(model(32), prompts) == 0.0


def test_dropped_mass_warns_and_fails():
    assert check_dropped_mass(1e-7, source="m") is None
    assert "m loses 0.001" in str(check_dropped_mass(1e-3, source="m"))
    with pytest.raises(VocabularyMismatchError, match=r"m puts 0\.02"):
        check_dropped_mass(0.02, source="m")

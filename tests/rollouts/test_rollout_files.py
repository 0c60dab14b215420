from pathlib import Path

import pytest
import torch

from fractionate.config import TeacherContext, TeacherRollout, Temperature
from fractionate.models.load import LanguageModel
from fractionate.rollouts import Completions, Speaker, draw
from fractionate.rollouts.context import teacher_messages
from fractionate.rollouts.corpus import CorpusError, load_completions, save_completions

PROMPTS = [[1, 5, 9], [1, 20, 21, 22], [1, 7]]


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "hidden"])
def written(request: pytest.FixtureRequest, teacher: LanguageModel) -> Completions:
    return draw(
        TeacherRollout(),
        Temperature(),
        student=None,
        teacher=Speaker(teacher, PROMPTS),
        max_new_tokens=12,
        seed=1,
        samples=5,
        keep_teacher_hidden=request.param,
    )


def test_a_corpus_comes_back_exactly(written: Completions, tmp_path: Path):
    save_completions(tmp_path / "corpus.safetensors", written)
    read = load_completions(tmp_path / "corpus.safetensors")
    for name in ("tokens", "lengths", "log_probs", "source"):
        assert torch.equal(getattr(read, name), getattr(written, name)), name
    assert read.stop == written.stop
    assert (read.hidden is None) == (written.hidden is None)
    if written.hidden is not None and read.hidden is not None:
        assert torch.equal(read.hidden, written.hidden)


def test_a_corpus_stores_no_padding(written: Completions, tmp_path: Path):
    path, wide = tmp_path / "packed.safetensors", tmp_path / "wide.safetensors"
    save_completions(path, written)
    extra = torch.zeros(written.tokens.shape[0], 500)
    padded = Completions(
        tokens=torch.cat([written.tokens, extra.long()], 1),
        lengths=written.lengths,
        log_probs=torch.cat([written.log_probs, extra], 1),
        source=torch.cat([written.source, extra.long()], 1),
        stop=written.stop,
    )
    save_completions(wide, padded)
    assert wide.stat().st_size < path.stat().st_size + 200
    assert load_completions(wide).tokens.shape == padded.tokens.shape


def test_a_corpus_cut_short_is_named(written: Completions, tmp_path: Path):
    path = tmp_path / "corpus.safetensors"
    save_completions(path, written)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CorpusError, match=r"corpus\.safetensors: cannot be read"):
        load_completions(path)


def test_a_file_of_another_kind_is_named(tmp_path: Path):
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(CorpusError, match="is not a file of completions"):
        load_completions(tmp_path / "other.safetensors")


def test_equal_completions_are_equal_files(written: Completions, tmp_path: Path):
    paths = [tmp_path / f"{i}.safetensors" for i in range(8)]
    for path in paths:
        save_completions(path, written)
    assert len({path.read_bytes() for path in paths}) == 1


def test_a_missing_corpus_is_named(tmp_path: Path):
    with pytest.raises(CorpusError, match="no such file"):
        load_completions(tmp_path / "none.safetensors")


def test_a_corpus_that_contradicts_itself_is_refused(written: Completions, tmp_path: Path):
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    path = tmp_path / "corpus.safetensors"
    save_completions(path, written)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    tensors["log_probs"] = tensors["log_probs"][:-1].clone()
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(CorpusError, match="log_probs"):
        load_completions(path)


# ---------------------------------------------------------------- the teacher's context

MESSAGES = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 2 + 2?"},
)


@pytest.mark.parametrize("context", [None, TeacherContext()])
def test_no_context_leaves_the_messages_alone(context: TeacherContext | None):
    assert teacher_messages(MESSAGES, context, demonstration="4") == MESSAGES


def test_demonstration_and_instruction_extend_the_last_user_message():
    context = TeacherContext(demonstration=True, instruction="Answer in Spanish.")
    system, user = teacher_messages(MESSAGES, context, demonstration="2 + 2 = 4")
    assert system == MESSAGES[0]
    assert user["content"].startswith("What is 2 + 2?")
    assert "2 + 2 = 4" in user["content"]
    assert user["content"].endswith("Answer in Spanish.")
    assert MESSAGES[1]["content"] == "What is 2 + 2?"


def test_an_instruction_alone_shows_no_solution():
    context = TeacherContext(instruction="Answer in Spanish.")
    _, user = teacher_messages(MESSAGES, context, demonstration="2 + 2 = 4")
    assert user["content"] == "What is 2 + 2?\n\nAnswer in Spanish."


def test_a_missing_demonstration_is_an_error():
    with pytest.raises(ValueError, match=r"teacher_context\.demonstration"):
        teacher_messages(MESSAGES, TeacherContext(demonstration=True))


def test_a_prompt_without_user_message_is_an_error():
    with pytest.raises(ValueError, match="user message"):
        teacher_messages(MESSAGES[:1], TeacherContext(instruction="x"))

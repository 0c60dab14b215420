"""The entry: completions under any rollout policy, with the law that every token was drawn from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from fractionate.config import (
    CoinRollout,
    HandoverRollout,
    Rollout,
    SkdRollout,
    SpectrumRollout,
    Temperature,
)
from fractionate.models.load import LanguageModel
from fractionate.models.stepper import Outlook
from fractionate.records import Source, StopReason
from fractionate.rng import stream
from fractionate.rollouts.completions import Completions
from fractionate.rollouts.decode import Alone, DecodeBudget, Decoder, Law, Speaker, Uniforms
from fractionate.rollouts.laws import (
    accepted_log_probs,
    coin_token_log_probs,
    nucleus_log_probs,
    spectrum_log_probs,
    teacher_top_k,
)
from fractionate.rollouts.sampling import (
    draw_from_law,
    inverse_cdf,
    pick,
    sampler_log_probs,
)
from fractionate.rollouts.tape import Choice, Sampled


@dataclass(frozen=True)
class _Request:
    """What a policy's runner needs."""

    temperature: Temperature
    student: Speaker | None
    teacher: Speaker | None
    max_new_tokens: int
    seed: int
    samples: int
    keep_teacher_hidden: bool

    @property
    def speakers(self) -> list[Speaker]:
        return [speaker for speaker in (self.student, self.teacher) if speaker is not None]

    def decoder(self) -> Decoder:
        return Decoder(
            self.speakers,
            max_new_tokens=self.max_new_tokens,
            seed=self.seed,
            samples=self.samples,
        )

    def pair(self, kind: str) -> tuple[Speaker, Speaker]:
        if self.student is None or self.teacher is None:
            missing = "student" if self.student is None else "teacher"
            raise ValueError(f"rollout '{kind}' needs both models, but no {missing} was given")
        return self.student, self.teacher

    def law_of(self, source: Source) -> Law:
        """The law of one model writing alone."""
        temperature = (
            self.temperature.student_rollout
            if source == Source.STUDENT
            else self.temperature.teacher_rollout
        )
        return Alone(source, temperature, self.temperature.top_p)


def draw(  # noqa: PLR0913 - the one entry to every policy
    rollout: Rollout,
    temperature: Temperature,
    *,
    student: Speaker | None,
    teacher: Speaker | None,
    max_new_tokens: int,
    seed: int,
    samples: int = 1,
    keep_teacher_hidden: bool = False,
) -> Completions:
    """Draw completions under a rollout policy.

    Completion tokens are appended to each model's own prompts. The stop set is the union of the
    models given; only those that the policy needs are run. Temperature and nucleus act on each
    model's law, except for `spectrum`, whose nucleus is that of the mixture.

    Args:
        rollout: The policy.
        temperature: Sampling temperatures and nucleus.
        student: The student with its prompts.
        teacher: The teacher with its prompts.
        max_new_tokens: Longest completion, stop token included.
        seed: Row i at position n sees the same random numbers whatever else is drawn.
        samples: Completions per prompt; rows are numbered prompt by prompt.
        keep_teacher_hidden: Keep the teacher's hidden states that predicted each token. Only
            where the teacher writes alone.

    Raises:
        ValueError: The policy lacks a model, or draws nothing ("dataset": see `from_dataset`).
    """
    run = _RUNNERS.get(rollout.kind)
    if run is None:
        raise ValueError("rollout 'dataset' draws nothing: use rollouts.from_dataset")
    if keep_teacher_hidden and rollout.kind != "teacher":
        raise ValueError(
            f"hidden states are kept where the teacher writes alone, not for '{rollout.label}'"
        )
    request = _Request(
        temperature=temperature,
        student=student,
        teacher=teacher,
        max_new_tokens=max_new_tokens,
        seed=seed,
        samples=samples,
        keep_teacher_hidden=keep_teacher_hidden,
    )
    return run(rollout, request)


def sample(  # noqa: PLR0913 - a sampler is described by all of these
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    samples: int = 1,
    temperature: float | int = 1.0,
    top_p: float | int = 1.0,
    max_new_tokens: int,
    seed: int,
    entropy: bool = False,
    budget: DecodeBudget | None = None,
) -> Sampled:
    """Sample one model, for evaluation.

    Args:
        model: The model.
        prompts: Token ids of each prompt; each is read once for all its samples.
        samples: Completions per prompt; rows are numbered prompt by prompt.
        temperature: 0 decodes greedily.
        top_p: Nucleus.
        max_new_tokens: Longest completion, stop token included.
        seed: Of the random numbers.
        entropy: Also measure the model's mean entropy at temperature 1 over each completion.
        budget: Memory and rows of one wave; by device if not given.

    Returns:
        The completions, as written by `Source.STUDENT`, and their entropies if asked for.
    """
    speaker = Speaker(model, prompts)
    decoder = Decoder(
        [speaker], max_new_tokens=max_new_tokens, seed=seed, samples=samples, budget=budget
    )
    law = Alone(Source.STUDENT, temperature, top_p, entropy=entropy)
    decoder.run([speaker], law, decoder.rows)
    return decoder.finish()


def from_dataset(
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    end_id: int,
    max_new_tokens: int,
    device: str | torch.device = "cpu",
) -> Completions:
    """Demonstrations as completions: tokenised, the stop token added, cut at the limit.

    Nobody drew them, so their log-probabilities are 0; one that was cut ends with
    `StopReason.LENGTH` and without a stop token.

    Args:
        texts: One demonstration per prompt.
        tokenizer: Of the student.
        end_id: The token that ends an answer, `LanguageModel.end_id`.
        max_new_tokens: Longest completion, stop token included.
        device: Where the tensors go.

    Raises:
        ValueError: There is no text.
    """
    if not texts:
        raise ValueError("rollout 'dataset' has no demonstration to draw from")
    ids = [list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
    whole = [row if row[-1:] == [end_id] else [*row, end_id] for row in ids]
    cut = [row[:max_new_tokens] for row in whole]
    lengths = torch.tensor([len(row) for row in cut], device=device)
    tokens = torch.full((len(cut), int(lengths.max())), end_id, device=device)
    for i, row in enumerate(cut):
        tokens[i, : len(row)] = torch.tensor(row, device=device)
    return Completions(
        tokens=tokens,
        lengths=lengths,
        log_probs=torch.zeros(tokens.shape, device=device),
        source=torch.full_like(tokens, Source.DATASET),
        stop=tuple(
            StopReason.STOP if len(row) <= max_new_tokens else StopReason.LENGTH for row in whole
        ),
    )


# ---------------------------------------------------------------- one model writes


def _student(_: Rollout, request: _Request) -> Completions:
    if request.student is None:
        raise ValueError("rollout 'student' needs a student")
    decoder = request.decoder()
    decoder.run([request.student], request.law_of(Source.STUDENT), decoder.rows)
    return decoder.finish().completions


def _teacher(_: Rollout, request: _Request) -> Completions:
    if request.teacher is None:
        raise ValueError("rollout 'teacher' needs a teacher")
    decoder = request.decoder()
    decoder.run(
        [request.teacher],
        request.law_of(Source.TEACHER),
        decoder.rows,
        keep_hidden=request.keep_teacher_hidden,
    )
    return decoder.finish().completions


def _handover(rollout: HandoverRollout, request: _Request) -> Completions:
    student, teacher = request.pair(rollout.kind)
    decoder, k = request.decoder(), rollout.teacher_tokens
    rows = decoder.run([teacher], request.law_of(Source.TEACHER), decoder.rows, end=k)
    decoder.run([student], request.law_of(Source.STUDENT), rows, start=k)
    return decoder.finish().completions


# ---------------------------------------------------------------- two models write


def _tempered(
    outlooks: Sequence[Outlook], temperature: Temperature, top_p: float
) -> tuple[Float[Tensor, "rows vocab"], Float[Tensor, "rows vocab"]]:
    """Log-probabilities of student and teacher as each of them samples."""
    student, teacher = (outlook.logits for outlook in outlooks)
    return (
        sampler_log_probs(student, temperature=temperature.student_rollout, top_p=top_p),
        sampler_log_probs(teacher, temperature=temperature.teacher_rollout, top_p=top_p),
    )


def _spectrum(rollout: SpectrumRollout, request: _Request) -> Completions:
    def law(outlooks: Sequence[Outlook], uniforms: Uniforms) -> Choice:
        student, teacher = _tempered(outlooks, request.temperature, 1.0)
        mixture = spectrum_log_probs(
            student_log_probs=student,
            teacher_log_probs=teacher,
            lam=rollout.lam,
            alpha=rollout.alpha,
            clip=rollout.clip,
        )
        mixture = nucleus_log_probs(mixture, top_p=request.temperature.top_p)
        drawn = draw_from_law(mixture, uniforms("token"))
        return Choice(drawn.tokens, drawn.log_probs, torch.full_like(drawn.tokens, Source.MIXTURE))

    return _together(law, rollout.kind, request)


def _coin(rollout: CoinRollout, request: _Request) -> Completions:
    if rollout.per == "sequence":
        return _coin_per_sequence(rollout, request)

    def law(outlooks: Sequence[Outlook], uniforms: Uniforms) -> Choice:
        student, teacher = _tempered(outlooks, request.temperature, request.temperature.top_p)
        heads = uniforms("coin") < rollout.student_share
        chosen = torch.where(heads[:, None], student, teacher)
        tokens = inverse_cdf(chosen.exp(), uniforms("token"))
        mixture = coin_token_log_probs(
            student_log_probs=student,
            teacher_log_probs=teacher,
            student_share=rollout.student_share,
        )
        return Choice(tokens, pick(mixture, tokens), _who(heads))

    return _together(law, rollout.kind, request)


def _coin_per_sequence(rollout: CoinRollout, request: _Request) -> Completions:
    """The coin of each completion is recorded as its source, so the law is the chosen model's."""
    student, teacher = request.pair(rollout.kind)
    decoder = request.decoder()
    flips = stream(request.seed, "coin").random(len(decoder.rows))
    heads = torch.from_numpy(flips < rollout.student_share).to(decoder.rows.device)
    decoder.run([student], request.law_of(Source.STUDENT), decoder.rows[heads])
    decoder.run([teacher], request.law_of(Source.TEACHER), decoder.rows[~heads])
    return decoder.finish().completions


def _skd(rollout: SkdRollout, request: _Request) -> Completions:
    def law(outlooks: Sequence[Outlook], uniforms: Uniforms) -> Choice:
        student, teacher = _tempered(outlooks, request.temperature, request.temperature.top_p)
        accepted = teacher_top_k(outlooks[1].logits, rollout.top_k)
        proposal = inverse_cdf(student.exp(), uniforms("token"))
        redrawn = inverse_cdf(teacher.exp(), uniforms("redraw"))
        kept = accepted.gather(-1, proposal[:, None])[:, 0]
        tokens = torch.where(kept, proposal, redrawn)
        mixture = accepted_log_probs(
            student_log_probs=student, teacher_log_probs=teacher, accepted=accepted
        )
        return Choice(tokens, pick(mixture, tokens), _who(kept))

    return _together(law, rollout.kind, request)


def _together(law: Law, kind: str, request: _Request) -> Completions:
    pair = request.pair(kind)
    decoder = request.decoder()
    decoder.run(pair, law, decoder.rows)
    return decoder.finish().completions


def _who(student: Tensor) -> Tensor:
    return torch.where(student, int(Source.STUDENT), int(Source.TEACHER))


_RUNNERS: Final[Mapping[str, Callable[..., Completions]]] = {
    "student": _student,
    "teacher": _teacher,
    "spectrum": _spectrum,
    "coin": _coin,
    "handover": _handover,
    "skd": _skd,
}

"""Evaluation: a model, a suite of tasks and the measurements of the study, to one record per item.

Every condition (a suite at a temperature) draws from its own random stream, which depends on the
evaluation seed only. Arms evaluated with one seed thus share their random numbers, so that the
differences between them are paired by item.
"""

from fractionate.config import Evaluate, Lengths, Temperature
from fractionate.evaluate.answers import answers, forgetting
from fractionate.evaluate.beside import drifts, gradients, needed, resamplings
from fractionate.evaluate.session import Measure, Reference, Report, Session, Suite
from fractionate.evaluate.style import styles
from fractionate.models.load import LanguageModel
from fractionate.records import EvalRecord


def evaluate(  # noqa: PLR0913 - one argument per thing that is compared or held fixed
    model: LanguageModel | Reference,
    *,
    config: Evaluate,
    suite: Suite,
    lengths: Lengths,
    base: LanguageModel | None = None,
    teacher: Reference | None = None,
    temperature: Temperature,
    seed: int,
    report: Report | None = None,
) -> list[EvalRecord]:
    """Take every measurement that needs the model to write or to score.

    Conditions stay separate: accuracy is sampled anew even where coverage has its temperature.
    Prior skills are decoded greedily, all in one batch, each completion up to twice the longest
    right answer, beyond which it cannot become right.

    Args:
        model: The model measured; a `Reference` where it sees more of a problem than the prompt.
        config: Which measurements; those that are none are left out.
        suite: The tasks.
        lengths: Limits of prompts and completions, in tokens.
        base: The untrained student, for the drift from it.
        teacher: The teacher in its own context, for the distance to it.
        temperature: The method's temperatures, for the distance to the teacher and for gradients.
        seed: The evaluation seed, shared by all arms of a study.
        report: Called before each measurement with {"measure": name, "done": i, "of": n}.

    Returns:
        One record per item and condition, in a fixed order.

    Raises:
        ValueError: The config asks for something that `suite`, `base` or `teacher` does not have,
            for more items than there are, or a prompt exceeds `lengths.prompt`.
    """
    subject = model if isinstance(model, Reference) else Reference(model)
    session = Session(subject, lengths, seed, suite.chat_template_kwargs)
    measures: list[Measure] = answers(session, config, suite)
    measures += forgetting(session, config, suite)
    if config.style is not None:
        measures += styles(session, config.style, suite.task)
    if config.drift is not None:
        measures += drifts(session, config.drift, suite.task, base, teacher, temperature)
    if config.resampling is not None:
        other = needed(teacher, "resampling")
        measures += resamplings(session, config.resampling, suite.task, other)
    if config.gradients is not None:
        other = needed(teacher, "gradients")
        measures.append(gradients(session, config.gradients, suite.task, other, temperature))
    records: list[EvalRecord] = []
    for done, (name, measure) in enumerate(measures):
        if report is not None:
            report({"measure": name, "done": done, "of": len(measures)})
        records += measure()
    return records

"""The loop: rollout, score, objective, update, record."""

from collections.abc import Callable

import torch

from fractionate.distill.journal import taken_from
from fractionate.distill.run import Distillation
from fractionate.distill.step_record import StepTally
from fractionate.distill.student import NonFiniteUpdateError, learning_rate

ROLLOUT = "rollout/"
"""In front of the names of what a rollout source has under way, in a checkpoint."""


def distill(run: Distillation, *, progress: Callable[[int, int], None]) -> int:
    """Train the student from where its journal stands; returns the number of steps taken.

    Args:
        run: What to do.
        progress: Called with (finished steps, all steps).

    Raises:
        NonFiniteUpdateError: Loss or gradient is not finite; the last checkpoint stays.
    """
    student, steps = run.student, run.budget.steps
    step, state = run.journal.resume()
    tokens_trained = int(state.pop("tokens_trained", torch.zeros(())))
    run.source.load_state(taken_from(state, prefix=ROLLOUT))
    if state:
        student.load_state(state)
    while step < steps and tokens_trained < (run.budget.tokens or float("inf")):
        prompts = run.prompts(step)
        drawn = run.source.completions(step, prompts)
        loss_mask = run.objective.loss_mask(drawn.completions)
        tally = StepTally(run, step, drawn, loss_mask)
        for rows in tally.micro_batches(prompts):
            laws = run.scorer.laws(prompts, drawn.completions, rows)
            loss = run.objective(
                laws,
                rollout=drawn.completions,
                loss_mask=loss_mask,
                rows=rows,
                uniforms=tally.uniforms("auxiliary", rows),
            )
            if not loss.isfinite():
                raise NonFiniteUpdateError(
                    f"the loss is {loss.item()} at step {step + 1}. Lower optimizer.lr, or look "
                    "at the last records of this cell"
                )
            loss.backward()
            tally.add(loss, laws, rows)
        update = student.update(learning_rate(step, student.optimizer))
        step, tokens_trained = step + 1, tokens_trained + loss_mask.n_tokens
        run.journal.record(tally.record(update))
        if step in run.save_at:
            run.save(step, student)
        if step % run.checkpoint_every == 0 and step < steps:
            saved = {f"{ROLLOUT}{name}": tensor for name, tensor in run.source.state().items()}
            saved |= {**student.state(), "tokens_trained": torch.tensor(tokens_trained)}
            run.journal.checkpoint(step, saved)
        progress(step, steps)
    return step

"""Where a micro-batch stands in its optimizer step and in the validation interval."""

from lightning.pytorch import Trainer


def is_whole_step(trainer: Trainer, batch_idx: int) -> bool:
    """Whether this micro-batch completed an optimizer step."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0


def is_due(trainer: Trainer, batch_idx: int) -> bool:
    """Whether the trainer validates after this micro-batch."""
    interval = trainer.val_check_batch
    return bool(trainer.enable_validation and interval and (batch_idx + 1) % interval == 0)


def is_logged(trainer: Trainer) -> bool:
    """Whether the optimizer step just completed has a row of metrics: the first, the last, every n-th."""
    step, every = trainer.global_step, trainer.log_every_n_steps  # type: ignore[attr-defined]
    return step == 1 or step % every == 0 or step == trainer.max_steps

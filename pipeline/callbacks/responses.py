"""What a policy answers, beside what it answered before training."""

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import move_data_to_device

from datamodules.files import write_atomic
from datamodules.prompts import PromptDataModule
from lit_models.ppo import LitPPO
from pipeline.callbacks.parts import datamodule
from pipeline.run_folder import RunFolder


class ResponseSamples(Callback):
    """Answers to the first validation prompts at every validation, the reference's beside them, drawn with the same numbers.

    run_dir/samples/step_{k}.txt, and a table in W&B.

    Args:
        num_prompts: how many.
    """

    def __init__(self, num_prompts: int = 8) -> None:
        if num_prompts < 1:
            raise ValueError(f"num_prompts is {num_prompts}; it must be at least 1")
        self.num_prompts = num_prompts

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not isinstance(pl_module, LitPPO):
            raise ValueError(f"ResponseSamples is for a LitPPO, and the model is a {type(pl_module).__name__}")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        run = RunFolder(trainer.default_root_dir)
        if trainer.sanity_checking or not trainer.is_global_zero or not run.config.exists():
            return
        assert isinstance(pl_module, LitPPO)
        rows = answers(pl_module, datamodule(trainer), self.num_prompts)
        columns = ("prompt", "reference", "reference score", "policy", "policy score")
        text = "\n\n".join(
            f"{prompt}\n  before ({old_score:+.2f}): {old}\n  now    ({new_score:+.2f}): {new}"
            for prompt, old, old_score, new, new_score in rows
        )
        write_atomic(run.path / "samples" / f"step_{trainer.global_step}.txt", text + "\n")
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                logger.log_table("responses", columns=list(columns), data=[list(row) for row in rows], step=trainer.global_step)


def answers(module: LitPPO, data: PromptDataModule, count: int) -> list[tuple[str, str, float, str, float]]:
    """prompt, the reference's response and its score, the policy's response and its score."""
    dataset = data.dataset("validation")
    indices = np.arange(min(count, len(dataset)))
    batch = move_data_to_device(dataset[0, indices, indices], module.device)
    size = module.update.group_size
    rows = []
    for net in (module.reference, module.net):
        sampled, lengths = module.respond(net, batch)
        scores, _ = module.score(sampled, lengths)
        texts = [data.tokenizer.decode(ids[mask].tolist()) for ids, mask in zip(sampled.tokens, sampled.response, strict=True)]
        rows.append(list(zip(texts[::size], scores.tolist()[::size], strict=True)))
    prompts = [data.tokenizer.decode(ids[:n].tolist()) for ids, n in zip(batch["input_ids"], batch["lengths"], strict=True)]
    return [(prompt, *old, *new) for prompt, old, new in zip(prompts, *rows, strict=True)]

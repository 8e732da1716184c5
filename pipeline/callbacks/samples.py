"""What a language model writes, seen at every validation."""

from pathlib import Path
from typing import cast

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger

from datamodules.text import TextDataModule
from lit_models.nn.generation import generate
from lit_models.nn.gpt import GPT
from pipeline.callbacks.parts import datamodule


class GenerateSamples(Callback):
    """Continues fixed prompts at every validation: a W&B table `samples` and run_dir/samples/step_*.txt.

    Args:
        prompts: texts to continue; by default the first words of three places in the validation split.
        max_new_tokens, temperature, top_k: as in `generate`.
    """

    def __init__(
        self, prompts: list[str] | None = None, max_new_tokens: int = 64, temperature: float = 0.8, top_k: int | None = 50
    ) -> None:
        self.prompts, self.max_new_tokens = prompts, max_new_tokens
        self.temperature, self.top_k = temperature, top_k
        self.texts: list[tuple[str, str]] = []

    def _ids(self, data: TextDataModule) -> list[list[int]]:
        if self.prompts:
            return [data.tokenizer.encode(text) for text in self.prompts]
        windows = data.dataset("validation")
        length = min(8, data.max_seq_len, windows.num_tokens - 1)
        starts = [i * (windows.num_tokens - length) // 3 for i in range(3)]
        return [windows.tokens[start : start + length].tolist() for start in starts]

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking or not trainer.is_global_zero:
            return
        data: TextDataModule = datamodule(trainer)
        prompts = self._ids(data)
        steps = list(
            generate(
                cast(GPT, pl_module.net), prompts, max_new_tokens=self.max_new_tokens, temperature=self.temperature,
                top_k=self.top_k, eos_id=data.tokenizer.eos_id, seed=0,
            )
        )  # fmt: skip
        rows = [[token for step in steps if (token := step[i]) is not None] for i in range(len(prompts))]
        decode = data.tokenizer.decode
        self.texts = [(decode(p), decode(r)) for p, r in zip(prompts, rows, strict=True)]
        path = Path(trainer.default_root_dir) / "samples" / f"step_{trainer.global_step:06d}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n\n---\n\n".join(f"{p}|{c}" for p, c in self.texts) + "\n", encoding="utf-8")
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                table = [[trainer.global_step, p, c] for p, c in self.texts]
                logger.log_table("samples", columns=["step", "prompt", "continuation"], data=table, step=trainer.global_step)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero and self.texts:
            prompt, continuation = self.texts[0]
            print(f"\nsample ({prompt!r} continued):\n{prompt}{continuation}\n")

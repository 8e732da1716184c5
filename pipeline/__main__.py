"""`python -m pipeline COMMAND ...`: finds the command's module and imports no more than that."""

import difflib
import importlib
import sys

COMMANDS = {
    "fit": ("pipeline.cli", "train a model, or go on where the run folder stopped"),
    "validate": ("pipeline.cli", "metrics on the validation split"),
    "test": ("pipeline.cli", "metrics on the test split"),
    "predict": ("pipeline.cli", "a table of predictions for the test split"),
    "generate": ("pipeline.generate", "text from a trained language model"),
    "chat": ("pipeline.chat", "answers of a language model from SFT, PPO or DPO"),
    "chain": ("pipeline.chain", "language model, SFT, reward model, PPO and their evaluation, one after the other"),
    "fill": ("pipeline.fill", "the likeliest words for each [MASK]"),
    "search": ("pipeline.search", "the images nearest to a text, with a trained CLIP"),
    "classify": ("pipeline.classify", "images by the names of classes, with a trained CLIP"),
    "submit": ("pipeline.submit", "the job of a fit for SLURM, torchrun or Kubernetes, printed or sent off"),
    "export": ("pipeline.export", "a checkpoint's weights in one file, without the state of training"),
    "tokenize": ("pipeline.tokenize", "train a tokenizer and save it"),
    "bench": ("pipeline.bench", "step time, throughput, data wait, harness overhead, MFU"),
}

USAGE = "\n".join(
    [
        "usage: python -m pipeline COMMAND [--help] ...",
        "",
        *(f"  {name:<10}{text}" for name, (_, text) in COMMANDS.items()),
        "",
        "First: python -m pipeline fit --config configs/gpt.yaml",
    ]
)


def keep_heap() -> None:
    """Tells glibc to keep freed memory: giving it back and faulting it in again costs a CPU step up to a sixth of its time."""
    if sys.platform == "linux":
        import ctypes

        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # absent in other C libraries
        if mallopt is not None:
            m_trim_threshold, m_mmap_threshold = -1, -3
            mallopt(m_mmap_threshold, 1 << 30)
            mallopt(m_trim_threshold, (1 << 31) - 1)


def main(argv: list[str]) -> int:
    """Runs a command. Returns the exit code: 0 done, 1 failed, 2 bad input, 130 Ctrl-C, 143 SIGTERM."""
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if argv[0] not in COMMANDS:
        near = difflib.get_close_matches(argv[0], COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"commands: {', '.join(COMMANDS)}"
        print(f"error: there is no command {argv[0]!r}; {hint}", file=sys.stderr)
        return 2
    keep_heap()
    from pipeline.errors import guarded

    return guarded(lambda: importlib.import_module(COMMANDS[argv[0]][0]).main(argv))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

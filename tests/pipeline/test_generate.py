"""Text from a checkpoint alone."""

from pathlib import Path
from typing import Any

import pytest

from tests.reading import SMALL, run_pipeline


@pytest.fixture(scope="module")
def checkpoint(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model's checkpoint, moved away from its run folder, its text deleted."""
    folder = tmp_path_factory.mktemp("generate")
    ran = run_pipeline("fit", *SMALL, "--data.init_args.source.init_args.paths", text, "--run_dir", folder / "run")
    assert ran.returncode == 0, ran.stderr
    return (folder / "run/checkpoints/best.ckpt").rename(folder / "model.ckpt")


@pytest.fixture
def say(checkpoint: Path, inside: Any) -> Any:
    def run(*options: Any) -> str:
        code, out, last = inside("generate", "--ckpt_path", checkpoint, "--max_new_tokens", 24, *options)
        assert code == 0, last
        return out

    return run


def test_a_seed_decides_the_text(say: Any) -> None:
    assert say("--prompt", "The ", "--seed", 1) == say("--prompt", "The ", "--seed", 1)
    assert say("--prompt", "The ", "--seed", 1) != say("--prompt", "The ", "--seed", 2)
    assert say("--prompt", "The ").startswith("The ") and len(say("--prompt", "The ")) == 4 + 24 + 1


def test_a_batched_prompt_gives_the_text_of_the_prompt_alone(say: Any, tmp_path: Path) -> None:
    prompts = ["The ", "a class is", "x"]
    (tmp_path / "prompts.txt").write_text("\n".join(prompts))
    batched = say("--prompts_file", tmp_path / "prompts.txt", "--seed", 3)
    for prompt in prompts:
        assert say("--prompt", prompt, "--seed", 3).rstrip("\n") in batched


def test_the_cache_changes_nothing(say: Any) -> None:
    assert say("--prompt", "If ", "--use_cache", "false") == say("--prompt", "If ")


def test_several_samples_differ_and_temperature_0_does_not(say: Any) -> None:
    first, second, third = say("--prompt", "It", "--num_samples", 3, "--temperature", 1.5).split("---")[1:]
    assert len({first[8:], second[8:], third[8:]}) == 3
    assert say("--prompt", "It", "--temperature", 0, "--seed", 1) == say("--prompt", "It", "--top_k", 1, "--seed", 2)
    assert say("--prompt", "It", "--temperature", 0) == say("--prompt", "It", "--top_p", 0.0)


@pytest.mark.parametrize("prompt", ["123", "null", "[1, 2]", "{", "- a", "true"])
def test_a_prompt_is_text_whatever_it_looks_like(inside: Any, checkpoint: Path, prompt: str) -> None:
    code, out, last = inside("generate", "--ckpt_path", checkpoint, f"--prompt={prompt}", "--max_new_tokens", 1)
    assert (code == 0 and out.startswith(prompt)) or "is not among" in last, last  # or a character the text did not have


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--prompt", "x" * 17], "17 tokens"),
        (["--prompt", ""], "empty"),
        (["--prompt", "x", "--temperature", "-1"], "temperature"),
        (["--prompt", "x", "--top_p", "1.5"], "1.5"),
        (["--prompt", "x", "--top_k", "0"], "top_k"),
        (["--prompt", "x", "--num_samples", "0"], "num_samples"),
        (["--prompts_file", "nowhere.txt"], "nowhere.txt"),
        ([], "--prompt"),
        (["--prompt", "x", "--temprature", "1"], "temprature"),
    ],
)
def test_bad_input(inside: Any, checkpoint: Path, options: list[str], word: str) -> None:
    code, out, last = inside("generate", "--ckpt_path", checkpoint, *options)
    assert code == 2 and word in last and out == "", last

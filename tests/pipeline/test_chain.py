"""The chain: stages as runs of their own, finished ones left alone, faults named; and talking to its result."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from pipeline.chain import Stage, arguments, check
from pipeline.errors import BadInput
from tests.reading import run_pipeline

NET = ["--model.init_args.net.num_layers=1", "--model.init_args.net.num_heads=2", "--model.init_args.net.embed_dim=16"]
FEW = ["--trainer.max_steps=2", "--trainer.val_check_interval=2", "--trainer.limit_val_batches=2", "--trainer.accelerator=cpu"]
SMALL = [*NET, *FEW, "--data.init_args.batch_size=8"]


@pytest.fixture(scope="module")
def chain(text: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A small chain, and what its first run said."""
    folder = tmp_path_factory.mktemp("chain")
    source = "--data.init_args.source"
    own = [f"{source}.class_path=datamodules.sources.files.TextFiles", f"{source}.init_args.paths={text}"]
    place = "configs/alignment"
    stages = {
        "lm": {"config": f"{place}/lm.yaml", "options": [*SMALL, *own, "--data.init_args.tokenizer.init_args.vocab_size=300"]},
        "sft": {"config": f"{place}/sft.yaml", "init_from": "lm", "options": SMALL},
        "reward": {"config": f"{place}/reward.yaml", "init_from": "sft", "options": SMALL},
        "ppo": {
            "config": f"{place}/ppo.yaml", "init_from": "sft", "reward": "reward",
            "options": [*SMALL, "--data.init_args.eval_batch_size=8", "--model.init_args.sampling.max_new_tokens=8"],
        },
    }  # fmt: skip
    path = folder / "chain.yaml"
    path.write_text(yaml.safe_dump({"run_dir": str(folder / "runs"), "stages": stages}, sort_keys=False))
    return path, run_pipeline("chain", "--config", path)


@pytest.mark.slow
def test_every_stage_is_a_run_and_starts_from_the_one_before(chain: tuple[Path, Any]) -> None:
    path, ran = chain
    assert ran.returncode == 0, ran.stderr
    runs = path.parent / "runs"
    for name in ("lm", "sft", "reward", "ppo"):
        assert json.loads((runs / name / "results.json").read_text())["status"] == "done"
    assert f"init_from {runs}/lm/checkpoints/best.ckpt: " in ran.stdout and "new: scalar_head" in ran.stdout
    found = json.loads((runs / "results.json").read_text())
    assert {"score of the reward model", "gold score", "KL to SFT, nats per response"} <= found.keys()
    assert (runs / "figures/gold_against_kl.png").exists() and "before (" in ran.stdout and "chat --run_dir" in ran.stdout
    config = yaml.safe_load((runs / "ppo/config.yaml").read_text())
    assert config["wandb"]["group"] == "runs" and config["wandb"]["job_type"] == "ppo"
    # K07: what the policy's reference holds are the weights of SFT.
    state = torch.load(runs / "ppo/checkpoints/last.ckpt", weights_only=True)["state_dict"]
    sft = torch.load(runs / "sft/checkpoints/best.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(state[f"reference.{name.removeprefix('net.')}"], value) for name, value in sft.items())


@pytest.mark.slow
def test_finished_stages_are_not_run_again(chain: tuple[Path, Any]) -> None:
    path, _ = chain
    runs = path.parent / "runs"
    before = {p: p.stat().st_mtime_ns for name in ("lm", "sft") for p in (runs / name).rglob("*.ckpt")}
    (runs / "reward/results.json").unlink()  # as if it had been stopped at its end
    ran = run_pipeline("chain", "--config", path)
    assert ran.returncode == 0, ran.stderr
    for name in ("lm", "sft", "ppo"):
        assert f"{name}: done before" in ran.stdout
    assert "reward: done before" not in ran.stdout
    assert before == {p: p.stat().st_mtime_ns for p in before}


@pytest.mark.slow
def test_chat(chain: tuple[Path, Any], inside: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = chain[0].parent / "runs"
    for name in ("ppo", "sft"):
        monkeypatch.setattr("sys.stdin", io.StringIO(f"the film\n{'long ' * 80}\na story\n\nnot read\n"))
        code, out, last = inside("chat", "--run_dir", runs / name, "--max_new_tokens", 8)
        assert code == 0, last
        assert "the film" in out and "a story" in out and "not read" not in out and "there is room for 56 with 8" in out
    code, _, last = inside("chat", "--run_dir", runs / "reward")
    assert code == 2 and "is a checkpoint of lit_models.reward.LitReward" in last
    code, _, last = inside("chat", "--run_dir", runs / "sft", "--max_new_tokens", 64)
    assert code == 2 and "max_new_tokens is 64; it must be from 1 to 63" in last


def test_what_a_stage_is_given() -> None:
    stages = {
        "lm": Stage(run="runs/gpt"),
        "sft": Stage("configs/alignment/sft.yaml", init_from="lm", options=["--trainer.max_steps", "3"]),
    }
    words = arguments(Path("runs/mine"), "sft", stages, artifacts=True)
    assert words[:5] == ["fit", "--config", "configs/alignment/sft.yaml", "--run_dir", "runs/mine/sft"]
    assert words[words.index("--model.init_args.init_from") + 1] == "runs/gpt"
    assert words[words.index("--wandb.artifacts") + 1] == "true" and words[-2:] == ["--trainer.max_steps", "3"]


@pytest.mark.parametrize(
    "stages,message",
    [
        ({}, "stages is empty"),
        ({"a": Stage()}, "stages.a needs either a config or a run"),
        ({"a": Stage("none.yaml")}, "stages.a.config: none.yaml does not exist"),
        ({"a": Stage("README.md", init_from="b"), "b": Stage("README.md")}, "stages.a.init_from: b is no stage before it"),
        ({"a": Stage("README.md", reward="a")}, "stages.a.reward: a is no stage before it"),
    ],
)
def test_stages_that_cannot_be(stages: dict[str, Stage], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        check(stages)


def test_bad_input(inside: Any, tmp_path: Path) -> None:
    path = tmp_path / "chain.yaml"
    for content, message in (
        ("run_dir: x\nstages: {a: {confg: README.md}}", "confg"),
        (f"run_dir: {tmp_path}/r\nstages: {{a: {{run: {tmp_path}/nothing}}}}", "is no finished run"),
        ("stages: {a: {config: README.md}}", "run_dir"),
    ):
        path.write_text(content)
        code, _, last = inside("chain", "--config", path)
        assert code == 2 and message in last, last
    assert not (tmp_path / "r").exists()

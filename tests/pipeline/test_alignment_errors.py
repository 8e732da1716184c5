"""Bad input to alignment: named in the last line, exit code 2 and no run folder; a reward that fails later ends the run."""

import itertools
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SMALL = ["--trainer.accelerator=cpu", "--trainer.logger=false"]
MODEL, DATA = "--model.init_args", "--data.init_args"
CHARS = [f"{DATA}.tokenizer.class_path=datamodules.tokenizers.chars.CharTokenizer"]


@pytest.fixture(scope="module")
def sft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.reading import run_pipeline

    folder = tmp_path_factory.mktemp("errors") / "sft"
    ran = run_pipeline(
        "fit", "--config", "configs/alignment/enumerable_sft.yaml", *SMALL, "--trainer.max_steps=2", "--run_dir", folder
    )
    assert ran.returncode == 0, ran.stderr
    return folder


@pytest.fixture
def rewards(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A user's module of rewards."""
    made = ModuleType("my_rewards")
    monkeypatch.setitem(sys.modules, "my_rewards", made)
    return made


def ppo(start: Path, *options: str) -> list[str]:
    return [
        "fit", "--config", "configs/alignment/enumerable.yaml", *SMALL, f"{MODEL}.init_from={start}",
        f"{DATA}.batch_size=16", "--trainer.max_steps=3", *options,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda texts: 1 / 0, ["reward my_rewards.score failed", "ZeroDivisionError"]),
        (lambda texts: [float("nan")] * len(texts), ["reward my_rewards.score gave nan for '"]),
        (lambda texts: [0.0], ["gave 1 scores for 3 texts"]),
        (lambda texts: None, ["gave None, where 3 numbers were expected"]),
        (7, ["'my_rewards.score' is 7, where a function of texts was expected"]),
    ],
    ids=["raises", "NaN", "too few", "nothing", "no function"],
)
def test_a_reward_that_cannot_score_is_refused(
    function: Any, words: list[str], sft: Path, rewards: Any, inside: Any, tmp_path: Path
) -> None:
    rewards.score = function
    code, _, last = inside(*ppo(sft, f"{MODEL}.reward=my_rewards.score"), "--run_dir", tmp_path / "runs/ppo")
    assert code == 2 and all(word in last for word in words), last
    assert not (tmp_path / "runs").exists()
    rewards.gold, rewards.score = function, len
    code, _, last = inside(*ppo(sft, f"{MODEL}.gold=my_rewards.gold"), "--run_dir", tmp_path / "runs/ppo")
    assert code == 2 and "gold" in last and "my_rewards.gold" in last, last


def test_a_reward_that_fails_later_ends_the_run_with_the_last_good_checkpoint(
    sft: Path, rewards: Any, inside: Any, tmp_path: Path
) -> None:
    calls = []

    def score(texts: list[str]) -> list[float]:
        calls.append(len(texts))
        if len(calls) == 4:  # the trial before the run, then three rollouts
            raise ConnectionError("the scorer is away")
        return [float(len(text)) for text in texts]

    rewards.score = score
    folder = tmp_path / "ppo"
    command = [*ppo(sft, f"{MODEL}.reward=my_rewards.score", "--checkpoint.every_n_steps=1"), "--run_dir", folder]
    code, _, last = inside(*command)
    assert code == 1 and "reward my_rewards.score failed: ConnectionError: the scorer is away" in last
    code, out, _ = inside(*command)  # it goes on after the second rollout
    assert code == 0 and "continuing" in out and calls[4:5] == [3]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([f"{MODEL}.reward=no.such.function"], ["reward 'no.such.function'", "neither a run folder nor a function"]),
        ([f"{MODEL}.reward=score"], ["reward 'score'", "module.function"]),
        ([f"{MODEL}.reward=runs/no/where"], ["reward: no checkpoint at runs/no/where"]),
        ([f"{MODEL}.init_from=runs/no/where"], ["init_from", "runs/no/where"]),
        ([f"{MODEL}.sampling.max_new_tokens=8"], ["max_new_tokens 8", "max_seq_len 8"]),
        ([f"{MODEL}.net.dropout=0.1"], ["net.dropout is 0.1"]),
        ([f"{MODEL}.update.advantage=grpo"], ["group_size must be at least 2"]),
        ([f"{MODEL}.update.advantage=reinforce"], ["update.advantage", "reinforce"]),
        ([f"{MODEL}.update.epoch=3"], ["update", "epoch"]),
    ],
)
def test_bad_options_of_ppo(options: list[str], words: list[str], sft: Path, inside: Any, tmp_path: Path) -> None:
    code, _, last = inside(*ppo(sft, *options), "--run_dir", tmp_path / "runs/ppo")
    assert code == 2 and all(word in last for word in words), last
    assert not (tmp_path / "runs").exists()


def test_no_reward_model_and_another_tokenizer(sft: Path, inside: Any, tmp_path: Path) -> None:
    code, _, last = inside(*ppo(sft, f"{MODEL}.reward={sft}"), "--run_dir", tmp_path / "ppo")
    assert code == 2 and "no checkpoint of a reward model: its network has no scalar head" in last
    pairs = [{"prompt": "xy", "chosen": "z" * n, "rejected": "w" * n} for n in (1, 2, 3) for _ in range(8)]
    for row, pair in enumerate(pairs):
        pair["prompt"] += "xyzw"[row % 4]
    reward = preferences(tmp_path, pairs)
    code, _, last = inside(*reward, "--run_dir", tmp_path / "reward")
    assert code == 0, last
    code, _, last = inside(*ppo(sft, f"{MODEL}.reward={tmp_path / 'reward'}"), "--run_dir", tmp_path / "ppo")
    assert code == 2 and "trained with another tokenizer than the policy" in last
    assert not (tmp_path / "ppo").exists()


def preferences(folder: Path, rows: list[dict[str, str]]) -> list[str]:
    """A reward model on a table."""
    path = folder / "preferences.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = f"{DATA}.source"
    net = {"max_seq_len": 8, "num_layers": 1, "num_heads": 2, "embed_dim": 16}
    return [
        "fit", "--config", "configs/alignment/reward.yaml", *SMALL, *CHARS,
        f"{source}.class_path=datamodules.sources.exchange_tables.PreferenceTable", f"{source}.init_args.train={path}",
        f"{source}.init_args.val_fraction=0.3", f"{DATA}.tokenizer.init_args.special_tokens=['[PAD]', '[EOS]']",
        f"{DATA}.batch_size=4", *(f"{MODEL}.net.{name}={value}" for name, value in net.items()),
        "--trainer.max_epochs=null", "--trainer.max_steps=2", "--trainer.val_check_interval=1",
    ]  # fmt: skip


def test_preferences_without_a_difference_or_a_response(inside: Any, tmp_path: Path) -> None:
    prompts = ["".join(pair) for pair in itertools.product("yesno", repeat=2)]
    rows = [{"prompt": prompt, "chosen": "yes", "rejected": "no"} for prompt in prompts]
    rows[3]["rejected"] = "yes"
    rows[5] |= {"chosen": "sooooooyes", "rejected": "soooooono"}  # equal in 8 tokens
    rows[7]["prompt"] = "yesnoyesno"
    code, out, last = inside(*preferences(tmp_path, rows), "--run_dir", tmp_path / "reward")
    assert code == 0, last
    for said in ("pairs of equal responses", "pairs are equal when cut off at max_seq_len 8", "prompts leave no room"):
        assert sum(int(line.split()[1]) for line in out.splitlines() if said in line) == 1
    rows[9]["chosen"] = ""
    code, _, last = inside(*preferences(tmp_path, rows), "--run_dir", tmp_path / "other")
    assert code == 2 and "preferences.jsonl" in last and "10" in last and "chosen" in last, last
    assert not (tmp_path / "other").exists()

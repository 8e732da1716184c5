"""The step benchmarks run and print a line a row; what is compared is equal."""

import pytest
import torch

from tests.benchmarks import bert_step, clip_step, gpt_step, vit_step

TINY = "--threads 1 --rounds 1 --steps 1"
TINY_BERT = "--batch_size 4 --context 32 --vocab_size 64 --num_layers 1 --num_heads 2 --embed_dim 16"


def table(printed: str) -> dict[str, list[str]]:
    """The cells after each row's name."""
    lines = printed[printed.index("last loss") :].splitlines()[1:]
    return {line[:34].strip(): line[34:].split() for line in lines}


def test_bert_step(capsys: pytest.CaptureFixture[str]) -> None:
    bert_step.main(f"{TINY} {TINY_BERT}".split())
    found = table(printed := capsys.readouterr().out)
    assert list(found) == [
        "ours, AdamW fused", "ours, AdamW", "transformers eager, AdamW", "transformers eager, AdamW fused",
        "transformers sdpa, AdamW", "transformers sdpa, AdamW fused",
    ]  # fmt: skip
    assert "the first step's loss: ours 4." in printed  # ln 64 + ln 2 = 4.85
    assert found["ours, AdamW fused"][2] == "1.00"
    assert len({cells[3] for cells in found.values()}) == 1  # parameters
    losses = [float(cells[4]) for cells in found.values()]
    assert max(losses) - min(losses) < 1e-3  # after four equal steps


def test_bert_step_fails_where_the_losses_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    equal = bert_step.ours_loss
    monkeypatch.setattr(bert_step, "ours_loss", lambda *args: equal(*args) + 2e-4)
    with pytest.raises(AssertionError, match="ours"):
        bert_step.main(f"{TINY} {TINY_BERT}".split())


def test_a_batch_is_padded_and_predicted_as_said() -> None:
    ids, segments, mask, labels, predicted, follows = bert_step.make_batch(64, 128, 4096)
    length = mask.sum(1)
    assert length.min() >= 104 and length.max() == 128
    assert 0.07 < 1 - mask.float().mean() < 0.12
    assert torch.equal((labels.flatten() != -100).nonzero().squeeze(1), predicted)
    assert 0.13 < len(predicted) / length.sum() < 0.18
    assert (ids[~mask] == 0).all() and (ids[labels != -100] == 4).all() and (ids[mask] != 0).all()
    assert not segments[~mask].any() and segments.any(1).all() and set(follows.tolist()) == {0, 1}


def test_gpt_step(capsys: pytest.CaptureFixture[str]) -> None:
    gpt_step.main(TINY.split())
    printed = capsys.readouterr().out
    assert ", 1 rounds of 1 steps, " in printed
    found = table(printed)
    assert len(found) == 8 and list(found)[:3] == ["ours, AdamW fused", "ours, AdamW", "nanoGPT, AdamW"]
    assert all(len(cells) == 5 and 3.5 < float(cells[4]) < 4.5 for cells in found.values())  # ln 65 = 4.17


def test_vit_step(capsys: pytest.CaptureFixture[str]) -> None:
    vit_step.main(f"{TINY} --batch_size 4 --image_size 16 --num_layers 2 --num_heads 2 --embed_dim 16".split())
    found = table(capsys.readouterr().out)
    assert list(found) == ["ours", "torchvision", "timm", "transformers sdpa"]
    assert len({cells[3] for cells in found.values()}) == 1  # parameters
    losses = [float(cells[4]) for cells in found.values()]
    assert 1.8 < losses[0] < 2.8 and max(losses) - min(losses) < 1e-3  # ln 10 = 2.3; after four equal steps


def test_vit_step_fails_where_the_losses_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    equal = vit_step.weights_for
    monkeypatch.setattr(vit_step, "weights_for", lambda *args: {n: v + 1e-3 * (v.dim() == 1) for n, v in equal(*args).items()})
    with pytest.raises(AssertionError, match="ours"):
        vit_step.main(f"{TINY} --batch_size 4 --image_size 16 --num_layers 2 --num_heads 2 --embed_dim 16".split())


def test_clip_step(capsys: pytest.CaptureFixture[str]) -> None:
    clip_step.main(f"{TINY} --batch_size 4 --image_size 16 --num_layers 2 --num_heads 2 --embed_dim 16 --context 8".split())
    found = table(capsys.readouterr().out)
    assert list(found) == ["ours", "open_clip", "transformers sdpa"]
    assert len({cells[3] for cells in found.values()}) == 1  # parameters
    losses = [float(cells[4]) for cells in found.values()]
    assert max(losses) - min(losses) < 2e-2  # after four equal steps


def test_clip_step_fails_where_the_losses_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    equal = clip_step.weights_for
    monkeypatch.setattr(clip_step, "weights_for", lambda *args: {n: v + 1e-2 * (v.dim() == 1) for n, v in equal(*args).items()})
    with pytest.raises(AssertionError, match="ours"):
        clip_step.main(f"{TINY} --batch_size 4 --image_size 16 --num_layers 2 --num_heads 2 --embed_dim 16".split())

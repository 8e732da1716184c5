"""Every shipped config runs: shrunken, on a small text, for two steps."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.pipeline.conftest import documents, environment, inside, text  # noqa: F401 - fixtures
from tests.reading import ROOT

CONFIGS = sorted(p.name for p in (ROOT / "configs").glob("*.yaml") if p.name != "defaults.yaml")
SHRUNK_RESNET = {"width": 4, "layers": [1, 1]}
SHRUNK_VIT = {"num_layers": 1, "num_heads": 2, "embed_dim": 32}
SHRUNK_CLIP = {
    f"{tower}_{name}": value
    for tower in ("image", "text")
    for name, value in {"num_layers": 1, "num_heads": 2, "embed_dim": 16}.items()
}
SHRUNK = {"num_layers": 1, "num_heads": 2, "embed_dim": 16, "max_seq_len": 16}


@pytest.mark.parametrize("name", CONFIGS)
def test_two_steps_of_every_config(name: str, inside: Any, documents: Path, tmp_path: Path) -> None:  # noqa: F811
    """Running text is replaced by a small one; other sources are the config's own."""
    config = (ROOT / "configs" / name).read_text()
    kinds = {"LitResNet": SHRUNK_RESNET, "LitViT": SHRUNK_VIT, "LitCLIP": SHRUNK_CLIP}
    shrunk = next((sizes for kind, sizes in kinds.items() if kind in config), SHRUNK)
    options = [f"--model.init_args.net.{key}={value}" for key, value in shrunk.items()]
    if "ImageTable" in config or "HubImages" in config:
        options += ["--data.init_args.source.class_path=datamodules.sources.mnist.MNIST5K"]
        options += ["--data.init_args.image_size=32", "--data.init_args.augmentation.rand_augment=0"]
    if "WebDataset" in config:
        source = "--data.init_args.source"
        fonts = {"train": "[remix]", "validation": "[elusive]", "test": "[codicons]"}
        options += [f"{source}.class_path=datamodules.sources.icons.Icons", "--data.init_args.image_size=32"]
        options += [f"{source}.init_args.{split}={names}" for split, names in fonts.items()]
    if "ImageTextDataModule" in config:
        options += ["--data.init_args.eval_batch_size=32"]
    elif any(data in config for data in (".TextDataModule", "SentencePairDataModule")):
        source = "--data.init_args.source"
        options += [f"{source}.class_path=datamodules.sources.files.TextFiles", f"{source}.init_args.paths={documents}"]
        options += [f"{source}.init_args.val_fraction=0.1"]
    options += ["--data.init_args.batch_size=4", "--data.init_args.micro_batch_size=2", "--model.init_args.compile=false"]
    options += ["--data.init_args.num_workers=0", "--trainer.limit_val_batches=2", "--trainer.val_check_interval=2"]
    if "BPETokenizer" in config:
        options += ["--data.init_args.tokenizer.init_args.vocab_size=300"]
    options += ["--config", "configs/trainer/cpu.yaml", "--trainer.max_steps=2", f"--run_dir={tmp_path / 'run'}"]
    code, _, last = inside("fit", "--config", f"configs/{name}", *options)
    assert code == 0, last


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_says_how_to_run_it_and_prints_itself(name: str, inside: Any) -> None:  # noqa: F811
    head = (ROOT / "configs" / name).read_text().splitlines()
    assert head[0].startswith("# ") and any(f"python -m pipeline fit --config configs/{name}" in line for line in head[:4])
    given = yaml.safe_load("\n".join(head))
    paths = ["--data.init_args.source.init_args.paths=x.txt"] if "TextFiles" in "\n".join(head) else []
    code, out, last = inside("fit", "--config", f"configs/{name}", *paths, "--print_config")
    printed = yaml.safe_load(out)
    assert code == 0, last
    assert printed["data"]["init_args"]["batch_size"] == given["data"]["init_args"]["batch_size"]


@pytest.mark.parametrize("name", ["cpu", "gpu", "ddp", "debug"])
def test_trainer_configs_change_the_trainer_only(name: str) -> None:
    assert set(yaml.safe_load((ROOT / f"configs/trainer/{name}.yaml").read_text())) <= {"trainer", "checkpoint", "run_dir"}


def test_gpt2_has_the_published_size() -> None:
    from lit_models.nn.gpt import GPT

    net = yaml.safe_load((ROOT / "configs/gpt2_124m.yaml").read_text())["model"]["init_args"]["net"]
    assert sum(p.numel() for p in GPT(vocab_size=50257, **net).parameters()) == 124_439_808


def test_clip_vit_b32_has_the_published_size() -> None:
    from lit_models.nn.clip import CLIP

    config = yaml.safe_load((ROOT / "configs/clip_vit_b32.yaml").read_text())
    data, net = config["data"]["init_args"], config["model"]["init_args"]["net"]
    vocab_size = data["tokenizer"]["init_args"]["vocab_size"]
    assert sum(p.numel() for p in CLIP(data["image_size"], vocab_size, 1, **net).parameters()) == 151_277_313


def test_vit_b16_has_the_published_size() -> None:
    from lit_models.nn.vit import ViT

    config = yaml.safe_load((ROOT / "configs/vit_b16_imagenet.yaml").read_text())
    net = ViT(config["data"]["init_args"]["image_size"], 1000, **config["model"]["init_args"]["net"])
    assert sum(p.numel() for p in net.parameters()) == 86_567_656

"""fit | validate | test | predict: the command line, its links, the run folder around a run."""

import inspect
import json
import logging
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jsonargparse import ArgumentError
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from datamodules.base import BaseDataModule
from lit_models.base import LitBase
from lit_models.nn.weights import find_checkpoint
from pipeline import checkpoint_io
from pipeline.callbacks.stop import stop_while_starting
from pipeline.config import DEFAULTS, Given, annotation, find_class, parameters
from pipeline.errors import BadInput
from pipeline.evaluate import evaluate, predict
from pipeline.explain import explain, unknown_key
from pipeline.fit import run_fit
from pipeline.processes import watch_children
from pipeline.run_folder import RunFolder
from pipeline.tracking import WandbConfig
from pipeline.trainer import build_trainer

NOT_CONFIG = ("config", "fresh", "allow_changes", "ckpt_path", "format")


@dataclass
class CheckpointConfig:
    """Which checkpoints are kept.

    Args:
        monitor: the metric of best.ckpt.
        mode: whether less or more of it is better.
        every_n_steps: optimizer steps between two saves of last.ckpt.
    """

    monitor: str = "val/loss"
    mode: Literal["min", "max"] = "min"
    every_n_steps: int = 200

    def __post_init__(self) -> None:
        if self.every_n_steps < 1:
            raise ValueError(f"checkpoint.every_n_steps is {self.every_n_steps}; it must be at least 1")


class Parser(LightningArgumentParser):
    """Refuses abbreviated options, and raises what it finds wrong instead of printing the usage."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False, "exit_on_error": False})


def link(parser: LightningArgumentParser, given: Given) -> None:
    """The one bit of magic: values that follow from others.

    seed_everything -> data.seed; net.max_seq_len -> data.max_seq_len; data.vocab_size, num_classes, nsp, image_size, eos_id
    -> net; data.classes, groups -> model; model.loss -> net.logit_bias; model.sampling.max_new_tokens -> data. Each only where
    both sides take it. A value given by hand that differs is refused in `check_links`.
    (`PipelineCLI.before_instantiate_classes` has data.init_from, which depends on the run folder.)
    """
    parser.link_arguments("seed_everything", "data.init_args.seed")
    net, data = _net_class(given), find_class(given.get("data.class_path"))
    model = find_class(given.get("model.class_path"))
    for name in NAMES:
        if model is not None and data is not None and name in parameters(model) and hasattr(data, name):
            parser.link_arguments("data", f"model.init_args.{name}", compute_fn=_reader(name), apply_on="instantiate")
    if net is None or data is None:
        return
    if "logit_bias" in parameters(net) and "loss" in parameters(model):
        parser.link_arguments("model.init_args.loss", "model.init_args.net.logit_bias", compute_fn=_needs_bias)
    if "sampling" in parameters(model) and "max_new_tokens" in parameters(data):
        parser.link_arguments("model.init_args.sampling.max_new_tokens", "data.init_args.max_new_tokens")
    if "max_seq_len" in parameters(net) and "max_seq_len" in parameters(data):
        parser.link_arguments("model.init_args.net.max_seq_len", "data.init_args.max_seq_len")
    for name in _sizes(net, data):
        parser.link_arguments("data", f"model.init_args.net.{name}", compute_fn=_reader(name), apply_on="instantiate")


def _net_class(given: Given) -> Any:
    model = find_class(given.get("model.class_path"))
    return None if model is None else annotation(model, "net")


SIZES = ("vocab_size", "num_classes", "nsp", "image_size", "eos_id")


NAMES = ("classes", "groups")


def _needs_bias(loss: str) -> bool:
    return loss == "sigmoid"


def _sizes(net: Any, data: Any) -> list[str]:
    known = {*parameters(data), *dir(data)}
    return [name for name in SIZES if inspect.isclass(net) and name in parameters(net) and name in known]


def _reader(name: str) -> Any:
    return lambda data: getattr(data, name)


def check_links(given: Given, config: dict[str, Any]) -> None:
    """Raises BadInput where a linked value was given by hand and is another than the link's."""
    linked = {"data.init_args.seed": "seed_everything", "data.init_args.max_seq_len": "model.init_args.net.max_seq_len"}
    linked |= {f"model.init_args.net.{name}": "the data" for name in SIZES}
    linked |= {f"model.init_args.{name}": "the data" for name in NAMES}
    linked |= {
        "model.init_args.net.logit_bias": "model.init_args.loss",
        "data.init_args.init_from": "model.init_args.init_from",
    }
    for target, source in linked.items():
        value = given.get(target)
        linked_to: Any = config
        for key in target.split("."):
            linked_to = (linked_to or {}).get(key)
        if value is not None and value != linked_to:
            raise BadInput(
                f"{target} is {value} in {given.where(target)}, but follows from {source}, which says {linked_to}: leave it out"
            )


class PipelineCLI(LightningCLI):
    """LightningCLI with a run folder around each run."""

    def __init__(self, command: str, argv: list[str]) -> None:
        argv = configs_first(argv)
        self.command, self.given = command, Given(argv)
        super().__init__(
            LitBase, BaseDataModule, subclass_mode_model=True, subclass_mode_data=True, save_config_callback=None,
            seed_everything_default=0, auto_configure_optimizers=False, parser_class=Parser,
            parser_kwargs={command: {"default_config_files": [str(DEFAULTS)]}}, args=[command, *nulls_as_configs(argv)],
        )  # fmt: skip

    # ---- parsing ------------------------------------------------------------------------------------------------------

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]  # there, static
        skip = {
            "fit": {"train_dataloaders", "val_dataloaders"},
            "validate": {"dataloaders", "verbose"},
            "test": {"dataloaders", "verbose"},
            "predict": {"dataloaders", "return_predictions"},
        }[self.command]
        return {self.command: {"model", "datamodule", "ckpt_path", "weights_only", *skip}}

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        text = "random draws follow from it: initial weights, order, dropout"
        parser.add_argument("--seed_everything", type=int, default=0, help=text)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("--run_dir", type=str, required=True, help="folder of the run: config, metrics, checkpoints")
        parser.add_class_arguments(CheckpointConfig, "checkpoint")
        parser.add_class_arguments(WandbConfig, "wandb")
        if self.command == "fit":
            parser.add_argument("--fresh", action="store_true", help="remove the run in run_dir and start anew")
            parser.add_argument("--allow_changes", action="store_true", help="go on with a config that changes the mathematics")
        else:
            parser.add_argument("--ckpt_path", type=str, default="best", help="best, last or a file")
        if self.command == "predict":
            parser.add_argument("--format", type=Literal["csv", "parquet"], default="csv", help="of the table of predictions")
            parser.add_argument(
                "--images", type=str | None, help="a folder, files or a glob: what an image classifier predicts"
            )
        link(parser, self.given)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        groups: dict[str, Any] = {"trainer": Trainer, "model": LitBase, "data": BaseDataModule}
        groups |= {"checkpoint": CheckpointConfig, "wandb": WandbConfig}
        options: dict[str, Any] = {"run_dir": str, "seed_everything": int}
        options |= {"fresh": bool, "allow_changes": bool} if self.command == "fit" else {"ckpt_path": str, "format": str}
        options |= {"print_config": str, "help": bool, "h": bool}
        if fault := unknown_key(self.given, [*groups, *options]):  # the parser lets an unknown key with nothing in it pass
            raise BadInput(fault)
        try:
            super().parse_arguments(parser, args)
        except ArgumentError as error:
            raise BadInput(explain(self.given, groups, options, str(error))) from None

    def _set_seed(self) -> None:
        seed = self._get(self.config, "seed_everything")
        if not 0 <= seed < 2**32:
            raise BadInput(f"seed_everything is {seed}; it must be from 0 to {2**32 - 1}")
        super()._set_seed()

    def _parse_ckpt_path(self) -> None:
        """A checkpoint never overrides the config (Lightning's would)."""

    # ---- what is made of it -------------------------------------------------------------------------------------------

    def before_instantiate_classes(self) -> None:
        """Where weights and tokenizer come from: a run with a checkpoint of its own needs no other, which may be gone."""
        config = self.config[self.command]
        model, data = config.model.init_args, config.data.init_args
        own = Path(config.run_dir) / "checkpoints"
        begun = self.command == "fit" and not config.fresh and any((own / f"{n}.ckpt").exists() for n in ("last", "best"))
        self.init_from, source = model.get("init_from"), None
        if begun or self.command != "fit":
            source = checkpoint_io.find(config.run_dir, "last" if begun else config.ckpt_path)
            model.init_from = None
        elif self.init_from:
            source = find_checkpoint(self.init_from)
        if "init_from" in data:
            data.init_from = str(source) if source and (self.init_from or not begun) else None

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        self.run = RunFolder(self._get(self.config_init, "run_dir"))
        self.datamodule.prepare()
        self._dump_config()
        self.resolved = {key: value for key, value in self.config_dump.items() if key not in NOT_CONFIG}
        self.resolved["model"]["init_args"]["init_from"] = self.init_from
        check_links(self.given, self.resolved)
        self.resolved["data"]["init_args"].pop("init_from", None)  # it follows from where the run stands
        args = dict(self._get(self.config_init, "trainer"))
        checkpoint = self._get(self.config_init, "checkpoint")
        return build_trainer(self.command, args, self.model, self.datamodule, self.run, checkpoint)

    # ---- running ------------------------------------------------------------------------------------------------------

    def fit(self, **_: Any) -> None:
        options = self.config_init["fit"]
        wandb = None if options.trainer.logger is False else options.wandb
        run_fit(
            self.trainer, self.model, self.datamodule, self.run, self.resolved, wandb,
            fresh=options.fresh, allow_changes=options.allow_changes,
        )  # fmt: skip

    def validate(self, **_: Any) -> None:
        evaluate(self.trainer, self.model, self.datamodule, self.run, "validate", self._weights())

    def test(self, **_: Any) -> None:
        evaluate(self.trainer, self.model, self.datamodule, self.run, "test", self._weights())

    def predict(self, **_: Any) -> None:
        predict(self.trainer, self.model, self.datamodule, self.run, self._weights(), self.config["predict"].format)

    def _weights(self) -> Path:
        return checkpoint_io.find(self.run.path, self.config[self.command].ckpt_path)


def configs_first(argv: list[str]) -> list[str]:
    """Options go over all config files, wherever they stand."""
    files: list[str] = []
    options: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        name, equals, _ = word.partition("=")
        into = files if name in ("--config", "-c") else options
        into.append(word)
        if into is files and not equals and words:
            into.append(words.pop(0))
    return [*files, *options]


def nulls_as_configs(argv: list[str]) -> list[str]:
    """Null options as small configs in their place: the parser would make the word "None" of one two classes deep."""
    found: list[str] = []
    for word in argv:
        if word == "null" and found and found[-1].startswith("--") and "=" not in found[-1]:
            word = f"{found.pop()}=null"
        name, _, value = word.partition("=")
        if value == "null" and "." in name and not name.endswith("+"):
            tree: Any = None
            for key in reversed(name.removeprefix("--").split(".")):
                tree = {key: tree}
            found += ["--config", json.dumps(tree)]
        else:
            found.append(word)
    return found


def with_saved_config(argv: list[str]) -> list[str]:
    """`--run_dir runs/gpt` alone stands for `--config runs/gpt/config.yaml --run_dir runs/gpt`."""
    given = Given(argv)
    if "run_dir" not in given.tree or any(word.split("=")[0] in ("--config", "-c") for word in argv):
        return argv
    config = Path(given.tree["run_dir"]) / "config.yaml"
    if not config.is_file():
        raise BadInput(f"{given.tree['run_dir']} is no run folder: it has no config.yaml")
    return ["--config", str(config), *argv]


def with_images(argv: list[str]) -> list[str]:
    """`--images folder` stands for the source that reads it."""
    words, source = [], "--data.init_args.source"
    rest = iter(argv)
    for word in rest:
        name, _, value = word.partition("=")
        if name != "--images":
            words.append(word)
            continue
        value = value or next(rest, "")
        if not value:
            raise BadInput("--images needs a folder, a file or a glob")
        words += [f"{source}.class_path", "datamodules.sources.image_folder.ImageFiles", f"{source}.init_args.paths", value]
    return words


def quiet() -> None:
    """Keeps the terminal to what concerns the user."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
    noises = ["LightningCLI's args parameter", "`broadcast_buffers`", ".*isinstance.treespec"]
    noises += ("It is recommended to use .*sync_dist", "The number of training batches", "Found .* in eval mode at the start")
    for noise in noises:
        warnings.filterwarnings("ignore", message=noise)


def main(argv: list[str]) -> int:
    command, *words = argv
    quiet()
    watch_children()
    if command == "fit":
        stop_while_starting()
    if command != "fit" and not {"-h", "--help"} & set(words):
        words = with_saved_config(words)
    if command == "predict":
        words = with_images(words)
    PipelineCLI(command, words)
    return 0

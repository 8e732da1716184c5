"""`chain`: language model -> SFT -> reward model -> PPO -> evaluation, each stage an ordinary run in a process of its own."""

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser
from rich.console import Console

from pipeline.errors import BadInput, RunFailed, Stopped
from pipeline.signals import die_with_parent


@dataclass
class Stage:
    """One run.

    Args:
        config: its config file, or null where `run` names a run that is there already.
        run: a finished run to use instead.
        init_from: the stage that it starts from.
        reward: the stage whose model scores it.
        options: more options of fit.
    """

    config: str | None = None
    run: str | None = None
    init_from: str | None = None
    reward: str | None = None
    options: list[str] = field(default_factory=list)


def chain(run_dir: str, stages: dict[str, Stage], fresh: bool = False, artifacts: bool = False) -> None:
    """Runs the stages one after the other; those that are finished are not run again, and one that was stopped goes on.

    Args:
        run_dir: the folder of the stages' run folders.
        stages: by name, in their order.
        fresh: remove what is there and start anew.
        artifacts: log checkpoints to W&B as artifacts.
    """
    root = Path(run_dir)
    check(stages)
    for signum in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(signum, _stop_between)
    if fresh:
        for name in stages:
            shutil.rmtree(root / name, ignore_errors=True)
    console = Console()
    for number, (name, stage) in enumerate(stages.items(), 1):
        title = f"stage {number} of {len(stages)}, {name}"
        if is_done(folder(root, name, stages)):
            print(f"{title}: done before, in {folder(root, name, stages)}", flush=True)
            continue
        if stage.run is not None:
            raise BadInput(f"{title}: {stage.run} is no finished run: it has no results.json that says done")
        console.rule(title)
        run(title, arguments(root, name, stages, artifacts))
    rewarded = [name for name, stage in stages.items() if stage.reward is not None]
    if rewarded:
        from pipeline.alignment_report import report

        stage = stages[rewarded[-1]]
        assert stage.init_from is not None and stage.reward is not None
        console.rule("evaluation")
        run("evaluation", ["validate", "--run_dir", str(root / rewarded[-1])])
        report(
            folder(root, stage.init_from, stages), folder(root, stage.reward, stages), folder(root, rewarded[-1], stages), root
        )


def run(title: str, words: list[str]) -> None:
    """A command in a process of its own.

    Raises:
        BadInput, RunFailed: it ended with exit code 2, or another.
        Stopped: it was stopped by a signal.
    """
    ended = run_alone([sys.executable, "-m", "pipeline", *words])
    if ended in (130, 143):
        raise Stopped(f"{title}: stopped; started again, the chain goes on here", ended)
    if ended == 2:
        raise BadInput(f"{title}: refused, as said above; started again, the chain goes on here")
    if ended:
        raise RunFailed(f"{title}: ended with exit code {ended}; started again, the chain goes on here")


def run_alone(command: list[str]) -> int:
    """A process in a group of its own, which gets the signals that this one gets, once each, and ends when this one is killed.

    Returns its exit code.
    """
    process = subprocess.Popen(command, start_new_session=True, preexec_fn=lambda: die_with_parent(signal.SIGTERM))
    passed_on = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
    before = {signum: signal.signal(signum, lambda number, _: process.send_signal(number)) for signum in passed_on}
    try:
        return process.wait()
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _stop_between(signum: int, frame: Any) -> None:
    from pipeline.callbacks.stop import stopped

    raise stopped(signum, "between two stages", first=True)


def check(stages: dict[str, Stage]) -> None:
    """Raises BadInput for a stage without a config, or one that starts from none before it."""
    if not stages:
        raise BadInput("stages is empty: name at least one")
    known: list[str] = []
    for name, stage in stages.items():
        if (stage.config is None) == (stage.run is None):
            raise BadInput(f"stages.{name} needs either a config or a run")
        if stage.config is not None and not Path(stage.config).is_file():
            raise BadInput(f"stages.{name}.config: {stage.config} does not exist")
        for key, other in (("init_from", stage.init_from), ("reward", stage.reward)):
            if other is not None and other not in known:
                raise BadInput(f"stages.{name}.{key}: {other} is no stage before it; those are {', '.join(known) or 'none'}")
        known.append(name)


def folder(root: Path, name: str, stages: dict[str, Stage]) -> Path:
    return Path(stages[name].run or root / name)


def is_done(path: Path) -> bool:
    try:
        return json.loads((path / "results.json").read_text())["status"] == "done"
    except (OSError, ValueError, KeyError, TypeError):
        return False


def arguments(root: Path, name: str, stages: dict[str, Stage], artifacts: bool) -> list[str]:
    """What `fit` is given for a stage."""
    stage = stages[name]
    words = ["fit", "--config", str(stage.config), "--run_dir", str(root / name)]
    for key, other in (("init_from", stage.init_from), ("reward", stage.reward)):
        if other is not None:
            words += [f"--model.init_args.{key}", str(folder(root, other, stages))]
    words += ["--wandb.group", root.name, "--wandb.job_type", name, "--wandb.artifacts", str(artifacts).lower()]
    return [*words, *stage.options]


def main(argv: list[str]) -> int:
    parser = ArgumentParser(prog="python -m pipeline chain", allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config", action="config", help="a file of these options")
    parser.add_function_arguments(chain)
    try:
        given = parser.parse_args(argv[1:])
    except Exception as error:  # the parser's own, of several kinds
        raise BadInput(" ".join(str(error).split())[:500]) from None
    given.pop("config", None)
    made = parser.instantiate_classes(given)
    chain(**{name: made[name] for name in ("run_dir", "stages", "fresh", "artifacts")})
    return 0

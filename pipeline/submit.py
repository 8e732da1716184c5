"""`submit`: the script or manifest that runs a fit on a cluster, to read, to keep, or to send off with --run."""

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from pipeline.config import Given
from pipeline.errors import BadInput, RunFailed

PORT = 29500
WARNING = 120
"""Seconds between SLURM's warning and the end of a job's time: a step, a checkpoint and the requeueing go into them."""


OPTIONS: dict[str, tuple[Any, str]] = {
    "nodes": (1, "machines"),
    "devices": (1, "processes on each, one for each device"),
    "name": ("", "of the job; by default the last part of run_dir"),
    "time": ("24:00:00", "SLURM: the limit, before which the job is warned, saves, is requeued and goes on"),
    "partition": ("", "SLURM's"),
    "account": ("", "SLURM's"),
    "cpus_per_device": (8, "CPU cores for each process"),
    "setup": ("", "a shell command before the run, such as '. .venv/bin/activate'"),
    "image": ("pytorch/pytorch:latest", "Kubernetes: the container's image, with the project in /workspace"),
    "volume": ("", "Kubernetes: the claim to mount as runs/, so that a pod that was moved finds its checkpoints"),
}
"""Defaults and meanings."""


def parser() -> argparse.ArgumentParser:
    text = "Prints the job of a fit. All other options, --config above all, go to fit as they stand."
    made = argparse.ArgumentParser("python -m pipeline submit", description=text, allow_abbrev=False, exit_on_error=False)
    made.add_argument(
        "--launcher", choices=("slurm", "torchrun", "kubernetes"), default="slurm", help="what starts the processes"
    )
    made.add_argument("--run", action="store_true", help="send it off: sbatch, kubectl apply; torchrun on one machine: run it")
    made.add_argument("--cpu", action="store_true", help="the devices are processes on CPUs, no GPUs")
    for name, (default, meaning) in OPTIONS.items():
        shown = f"{meaning} (default: {default})" if default else meaning
        made.add_argument(f"--{name}", type=type(default), default=default, help=shown)
    return made


def fit_words(words: list[str], launcher: str, nodes: int, devices: int) -> list[str]:
    """What fit is given: the user's words, and processes as many as the job has.

    Raises:
        BadInput: there is no config, or no run_dir that the next attempt would find again.
    """
    given = Given(words)
    files = [b if a in ("--config", "-c") else a.partition("=")[2] for a, b in zip(words, [*words[1:], ""], strict=True)
             if a in ("--config", "-c") or a.startswith(("--config=", "-c="))]  # fmt: skip
    if not files:
        raise BadInput("submit needs what fit needs: at least one --config")
    if not given.get("run_dir"):
        raise BadInput("submit needs a run_dir, in a config or as --run_dir: a requeued job goes on in it")
    own = {"trainer.devices": devices, "trainer.num_nodes": nodes}
    for option, value in own.items():
        if (said := given.get(option)) not in (None, "auto", value):
            raise BadInput(f"{option} is {said} in {given.where(option)}, but the job has {value}: leave it out")
    config = ["--config", f"configs/trainer/{'slurm' if launcher == 'slurm' else 'ddp'}.yaml"]
    cluster = [] if given.get("trainer.strategy") else config
    return ["fit", *words, *cluster, "--trainer.devices", str(devices), "--trainer.num_nodes", str(nodes)]


def slurm(job: dict[str, Any], words: list[str]) -> str:
    """A batch script: warned before its time is over, it saves, is requeued, and goes on in the same run folder."""
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={job['name']}",
        f"#SBATCH --nodes={job['nodes']}",
        f"#SBATCH --ntasks-per-node={job['devices']}",
        f"#SBATCH --cpus-per-task={job['cpus_per_device']}",
        *([f"#SBATCH --gpus-per-node={job['devices']}"] if not job["cpu"] else []),
        f"#SBATCH --time={job['time']}",
        *(f"#SBATCH --{key}={job[key]}" for key in ("partition", "account") if job[key]),
        f"#SBATCH --signal=USR1@{WARNING}",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        "#SBATCH --output=%x-%j.log",
        "",
        *([job["setup"]] if job["setup"] else []),
        f"export OMP_NUM_THREADS={job['cpus_per_device']}",
        f"srun --kill-on-bad-exit=1 python -m pipeline {shlex.join(words)}",
    ]
    return "\n".join(lines) + "\n"


def torchrun(job: dict[str, Any], words: list[str]) -> str:
    """A script for each machine. With several, HEAD is the first one's address, and RANK the machine's number."""
    group = ["--standalone"]
    if job["nodes"] > 1:
        group = ["--node_rank", '"$RANK"', "--master_addr", '"$HEAD"', "--master_port", str(PORT)]
    command = " ".join(["exec torchrun", f"--nnodes {job['nodes']} --nproc_per_node {job['devices']}", *group])
    lines = [
        "#!/bin/bash",
        *(
            ["# on each machine, with its number and the address of number 0:  HEAD=... RANK=0 bash job.sh"]
            * (job["nodes"] > 1)
        ),
        *([job["setup"]] if job["setup"] else []),
        f"export OMP_NUM_THREADS={job['cpus_per_device']}",
        f"{command} -m pipeline {shlex.join(words)}",
    ]
    return "\n".join(lines) + "\n"


def kubernetes(job: dict[str, Any], words: list[str]) -> str:
    """An indexed Job, a pod for each machine, and the service by which they find the first one. Evicted pods start again."""
    name = job["name"]
    group = f"--nnodes {job['nodes']} --nproc_per_node {job['devices']} --node_rank $JOB_COMPLETION_INDEX"
    head = f"--master_addr {name}-0.{name} --master_port {PORT}"
    setup = f"{job['setup']} && " if job["setup"] else ""
    resources: dict[str, Any] = {"cpu": job["devices"] * job["cpus_per_device"]}
    if not job["cpu"]:
        resources["nvidia.com/gpu"] = job["devices"]
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if job["volume"]:
        mounts.append({"name": "runs", "mountPath": "/workspace/runs"})
        volumes.append({"name": "runs", "persistentVolumeClaim": {"claimName": job["volume"]}})
    container = {
        "name": "fit",
        "image": job["image"],
        "workingDir": "/workspace",
        "command": ["bash", "-c", f"{setup}exec torchrun {group} {head} -m pipeline {shlex.join(words)}"],
        "env": [{"name": "OMP_NUM_THREADS", "value": str(job["cpus_per_device"])}],
        "resources": {"limits": resources},
        "volumeMounts": mounts,
    }
    pod = {
        "subdomain": name,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": WARNING,
        "containers": [container],
        "volumes": volumes,
    }
    stopped_in_order = {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [143]}}
    bad_input = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2]}}
    spec = {
        "completionMode": "Indexed",
        "completions": job["nodes"],
        "parallelism": job["nodes"],
        "backoffLimit": 6,
        "podFailurePolicy": {"rules": [stopped_in_order, bad_input]},
        "template": {"metadata": {"labels": {"job": name}}, "spec": pod},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"clusterIP": "None", "selector": {"job": name}, "ports": [{"port": PORT}]},
    }
    whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
    return yaml.safe_dump_all([service, whole], sort_keys=False, width=200)


def send(launcher: str, text: str, nodes: int) -> None:
    """Hands the job to what runs it.

    Raises:
        BadInput: that program is not here; or torchrun is to start several machines, which it cannot.
        RunFailed: it refused.
    """
    if launcher == "torchrun" and nodes > 1:
        raise BadInput("torchrun is started on each machine by hand: leave --run out and run the printed script there")
    command = {"slurm": ["sbatch"], "kubernetes": ["kubectl", "apply", "-f", "-"], "torchrun": ["bash", "-s"]}[launcher]
    try:
        ended = subprocess.run(command, input=text, text=True).returncode
    except FileNotFoundError:
        raise BadInput(f"{command[0]} is not on this machine: run submit where it is, or save what it prints") from None
    if ended:
        raise RunFailed(f"{command[0]} ended with exit code {ended}")


def main(argv: list[str]) -> int:
    try:
        own, words = parser().parse_known_args(argv[1:])
    except (argparse.ArgumentError, argparse.ArgumentTypeError) as error:
        raise BadInput(str(error)) from None
    job = vars(own)
    for key in ("nodes", "devices", "cpus_per_device"):
        if job[key] < 1:
            raise BadInput(f"--{key} is {job[key]}; it must be at least 1")
    words = fit_words(words, own.launcher, own.nodes, own.devices)
    checked = subprocess.run([sys.executable, "-m", "pipeline", *words, "--print_config"], capture_output=True, text=True)
    if checked.returncode:
        raise BadInput((checked.stderr.strip().splitlines() or ["fit refuses this"])[-1].removeprefix("error: "))
    name = own.name or Path(str(Given(words[1:]).get("run_dir"))).name
    job["name"] = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-") or "fit"
    text = {"slurm": slurm, "torchrun": torchrun, "kubernetes": kubernetes}[own.launcher](job, words)
    if own.run:
        send(own.launcher, text, own.nodes)
    else:
        print(text, end="")
    return 0

"""The processes of a run look after each other: one that fails, or falls silent, ends all of them, with its own words."""

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies.launchers import subprocess_script

from pipeline.errors import Stopped, reason
from pipeline.signals import die_with_parent

BEAT = 1.0
"""Seconds between two looks at the others."""
SILENCE = 40.0
"""Seconds after which a process that says nothing counts as lost, with its machine or the link to it."""


def watch_children() -> None:
    """Lightning's launcher ends a run whose child failed by killing it, without a word or an exit code: `_Children` instead.

    A child ends with its parent.
    """
    subprocess_script._launch_process_observer = lambda child_processes: _Children(child_processes).start()
    if int(os.environ.get("LOCAL_RANK", 0)) > 0:
        die_with_parent()


def leave(code: int, message: str = "") -> None:
    """Ends this process at once, also where its main thread waits in a collective for a process that will not come."""
    if message:
        print(message, file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(code)


class _Children(threading.Thread):
    """In rank 0 of a machine: ends it when one of the processes that it has started fails."""

    def __init__(self, processes: list[subprocess.Popen]) -> None:
        super().__init__(daemon=True)
        self.processes = processes

    def run(self) -> None:
        while any(process.poll() is None for process in self.processes):
            for rank, process in enumerate(self.processes, 1):
                if process.poll():
                    time.sleep(3 * BEAT)  # where the processes are connected, `Watch` has more to say
                    ended = process.returncode
                    if ended > 0:  # it has said why
                        leave(ended)
                    leave(1, f"error: the run failed: process {rank} was ended by {signal.Signals(-ended).name}")
            time.sleep(BEAT / 2)


class Watch(Callback):
    """Each process tells the others, through a store on rank 0's machine, that it lives, and why where it fails.

    A process that learns of a failure, that sees another silent, or that cannot reach the store ends with exit code 1 and the
    reason, whatever collective it waits in. (Without this a group waits for its time-out, ten to thirty minutes.)
    """

    def __init__(self) -> None:
        self._done = threading.Event()
        self._heard = time.monotonic()
        self._store: Any = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if trainer.world_size == 1:
            return
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        wait = timedelta(seconds=SILENCE)
        store = torch.distributed.TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=wait)
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun's store outlives an attempt
        self._store = torch.distributed.PrefixStore(f"watch/{attempt}", store)
        self._rank, self._world_size = trainer.global_rank, trainer.world_size
        trainer.strategy.barrier()
        self._heard = time.monotonic()
        threading.Thread(target=self._beat, daemon=True).start()
        threading.Thread(target=self._listen, daemon=True).start()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._done.set()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._store is None or isinstance(exception, Stopped | KeyboardInterrupt):
            self._done.set()
            return
        try:
            told = self._store.add("failures", 1) == 1
            if told:
                self._store.set("failed", f"process {self._rank}: {reason(exception)}")
        except RuntimeError:  # the store went with its process
            told = False
        time.sleep(3 * BEAT if told else SILENCE)  # the others end by what this one has told, or this one by theirs
        self._done.set()

    def _beat(self) -> None:
        """Talks to the store; each answer counts as a sign of life of its machine."""
        seen = dict.fromkeys(range(self._world_size), (b"", time.monotonic()))
        count = 0
        while not self._done.is_set():
            count += 1
            try:
                self._store.set(f"alive/{self._rank}", str(count))
                if self._store.check(["failed"]):
                    self._end(self._store.get("failed").decode())
                for rank, (last, at) in seen.items():
                    key = f"alive/{rank}"
                    said = self._store.get(key) if self._store.check([key]) else b""
                    if said != last:
                        seen[rank] = (said, time.monotonic())
                    elif time.monotonic() - at > SILENCE:
                        self._end(
                            f"process {rank} has been silent for {SILENCE:.0f} s: it hangs, or its machine or link is gone"
                        )
            except RuntimeError as error:
                time.sleep(2 * BEAT)
                self._end(f"process 0 is gone ({reason(error)})")
            self._heard = time.monotonic()
            self._done.wait(BEAT)

    def _listen(self) -> None:
        """Ends this process where the store has not answered: a cut link says nothing at all."""
        while not self._done.wait(BEAT):
            if time.monotonic() - self._heard > SILENCE:
                self._end(f"no answer from process 0 for {SILENCE:.0f} s: its machine or the link to it is gone")

    def _end(self, why: str) -> None:
        if not self._done.is_set():
            leave(1, f"error: the run failed: {why}")

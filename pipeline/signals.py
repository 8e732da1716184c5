"""What the kernel is asked for, without importing anything large."""

import ctypes
import signal
import sys


def die_with_parent(signum: int = signal.SIGKILL) -> None:
    """Asks the kernel for a signal when the parent process ends, however it ends: no orphan goes on writing (Linux only)."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signum)

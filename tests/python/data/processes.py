"""Processes of their own for tests of exits and signals, and what a process holds."""

import gc
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent
PRELUDE = """
import aegis, os, signal, sys, torch
from samples import *
from torch.utils.data import *
torch.set_num_threads(1)  # a forked child has none of the others
"""


def start(body, *arguments, wrapper=(), **options):
    """Python in a process group of its own, with the data sets of samples.py at hand."""
    return subprocess.Popen(
        [*wrapper, sys.executable, "-c", PRELUDE + textwrap.dedent(body), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(HERE)},
        **options,
    )


def run(body, *arguments, **options):
    process = start(body, *arguments, **options)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def group_is_gone(process, seconds=30):
    """Whether every process of the group ended, workers included."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)  # workers are no children of this process: there is nothing to wait on
    return False


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def left_behind():
    """Threads, child processes and descriptors of this process. Threads of queues go on for a moment after torch has
    closed these."""
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("QueueFeederThread"):
            thread.join(60)
    return threading.active_count(), len(multiprocessing.active_children()), descriptors()


def memory(pid="self"):
    """Resident bytes of a process by kind; a page that n processes map counts as one n-th in Pss."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}

"""Freed memory stays with the process when asked to, in processes of their own (it cannot be undone)."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator only")

MEASURE = """
import resource, sys, torch
from amago.kernels.memory import keep_freed_memory, release_freed_memory
torch.set_num_threads(1)
if sys.argv[1] == "keep":
    assert keep_freed_memory() and keep_freed_memory()
def work():
    for _ in range(4):
        torch.zeros(16 << 20, dtype=torch.uint8).fill_(1)
        torch.zeros(40 << 20, dtype=torch.uint8).fill_(1)
for _ in range(3):
    work()  # the heap grows to what is in use at once, and the holes
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() >> 20
held = resident()
release_freed_memory()
print(held - resident())
"""


def measure(mode: str) -> tuple[int, int]:
    """Page faults of eight large buffers in steady state, and the MiB that releasing gave back."""
    done = subprocess.run([sys.executable, "-c", MEASURE, mode], capture_output=True, text=True, check=True)
    faults, released = done.stdout.split()
    return int(faults), int(released)


def test_freed_memory_is_used_again_without_page_faults_and_can_be_released():
    faults, released = measure("keep")
    assert faults < 4 * (56 << 20) // 4096 // 4  # a quarter of the pages written, if the heap grows once more
    assert released >= 40


def test_the_usual_allocator_faults_on_every_page():
    faults, _ = measure("leave")
    assert faults > 4 * (40 << 20) // 16384  # what the function is for; pages of up to 16 KiB


def test_large_buffers_of_other_threads_still_work():
    code = (
        "import threading, torch; from amago.kernels.memory import keep_freed_memory; keep_freed_memory()\n"
        "ok = []\n"
        "def work(): ok.append(int(torch.ones(100 << 20, dtype=torch.uint8).sum()) == 100 << 20)\n"
        "threads = [threading.Thread(target=work) for _ in range(2)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]; assert ok == [True, True]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

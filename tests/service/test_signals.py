"""The server hears every signal, whenever it comes."""

from __future__ import annotations

import subprocess
import sys

# Each signal is sent at another moment around the beginning of the wait for it; with an Event that a handler sets it hangs.
CHILD = """
import os, signal, sys, threading, time
from ado_plugin.commands.serve import ArrivingSignals

signals, turns = ArrivingSignals(signal.SIGTERM, signal.SIGHUP), threading.Semaphore(0)

def send():
    for turn in range(3000):
        turns.acquire()
        time.sleep(turn % 50 * 2e-6)
        os.kill(os.getpid(), (signal.SIGTERM, signal.SIGHUP)[turn % 2])

threading.Thread(target=send, daemon=True).start()
for turn in range(3000):
    turns.release()
    assert signals.wait() == (signal.SIGTERM, signal.SIGHUP)[turn % 2], turn
print("heard them all")
"""


def test_no_signal_is_lost() -> None:
    """Three thousand signals around the beginning of a wait are heard, each once and in order."""
    found = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout == "heard them all\n"

"""Waiting for the threads of `local-task` without taking their cores.

At the end of a call, a thread of IREE 3.13 wakes the caller up, and only then says that the call has ended; the caller
spins until it does. If Linux lets the caller have the core of that thread at once, as it does on virtual machines, both
wait until the caller's time slice ends, which is 4 ms with 250 ticks a second. A thread of the batch class does not
displace the one that wakes it up: 100 products of 128x768x3072 took 185 ms on two cores, and 380 without this.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


def without_displacing(call: Callable[..., None]) -> Callable[..., None]:
    """`call`, during which the calling thread is in the batch class if it is in the usual one.

    Other threads, and the priority of this one, stay as they are. Where the system has no such classes or does not allow
    it, this is `call`.
    """
    if not hasattr(os, "SCHED_BATCH"):
        return call
    usual, batch, parameters = os.SCHED_OTHER, os.SCHED_BATCH, os.sched_param(0)
    policy, set_policy = os.sched_getscheduler, os.sched_setscheduler

    def call_in_batch_class(*arguments: Any) -> None:
        # A signal handler may raise after any of these lines: the class is changed inside `try`, so that it is always
        # restored, and restored again if Python 3.10 interrupts the first `finally` before its call.
        is_changed = False
        try:
            try:
                try:
                    if policy(0) == usual:
                        is_changed = True
                        set_policy(0, batch, parameters)
                except OSError:  # a sandbox
                    is_changed = False
                call(*arguments)
            finally:
                if is_changed:
                    set_policy(0, usual, parameters)
                    is_changed = False
        finally:
            if is_changed:
                set_policy(0, usual, parameters)

    return call_in_batch_class

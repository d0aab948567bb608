"""Waits for the threads of `local-task` without taking their cores.

At the end of a call, a worker thread of IREE 3.13 wakes up the caller before it marks the call as finished, and the
caller spins until the call is marked. If Linux gives the worker's core to the caller at once, as on virtual machines,
both wait until the caller's time slice ends, which takes 4 ms with 250 ticks per second. A thread in the batch class
does not displace the thread that wakes it up. With that, 100 products of 128x768x3072 took 185 ms on two cores instead
of 380 ms.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


def without_displacing(call: Callable[..., None]) -> Callable[..., None]:
    """`call`, with the calling thread in the batch class during the call, if it is in the default class before.

    Other threads and the thread's priority do not change. Systems without scheduling classes get `call` itself; if a
    sandbox forbids the change, the class stays as it is.
    """
    if not hasattr(os, "SCHED_BATCH"):
        return call
    usual, batch, parameters = os.SCHED_OTHER, os.SCHED_BATCH, os.sched_param(0)
    policy, set_policy = os.sched_getscheduler, os.sched_setscheduler

    def call_in_batch_class(*arguments: Any) -> None:
        # A signal handler may raise after any of these lines. The class is therefore changed inside `try`, and restored
        # a second time if Python 3.10 interrupts the first `finally` before its call.
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

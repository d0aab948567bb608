"""Linux's permission to use the tile registers of AMX: a process that uses them without it gets SIGILL.

Asking is the one change that this package makes to the state of a process. All threads share the permission, and
processes that are forked inherit it, but a program that is executed has to ask again. The only effect is that Linux
keeps 8 KiB more for each thread that uses the registers. Source: Linux, Documentation/arch/x86/xstate.rst.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache

#: Numbers of Linux for x86-64: the system call arch_prctl, its request, and the registers.
_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18


@cache
def may_use_amx() -> bool:
    """Ask for the tile registers, and return whether this process may use them."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    return ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0

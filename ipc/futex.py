"""Words of memory that processes share, and sleeping on them until another process changes one. Linux only; nothing polls.

A word is a 32-bit unsigned integer at an address that is a multiple of 4. Changes are atomic, as the kernel makes them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from functools import cache

_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98}  # of the system call futex; ppc64le and s390x have others again
_WAIT, _WAKE_OP = 0, 5  # without FUTEX_PRIVATE_FLAG: seen by every process that maps the memory
_ADD, _OR = 1 << 28, 2 << 28
_ALL = 2**31 - 1


def load(address: int) -> int:
    return ctypes.c_uint32.from_address(address).value


def sleep_while(address: int, value: int) -> None:
    """Returns once the word is woken or is not `value`, or for no reason: look again."""
    _call(address, _WAIT, value, None, None, 0)


def add_and_wake(address: int, number: int) -> None:
    """Adds a number below 2,048 to the word and wakes all who sleep on it."""
    _call(address, _WAKE_OP, _ALL, None, address, _ADD | number << 12)


def set_and_wake(address: int, bits: int) -> None:
    """Sets bits, of the lowest 11, and wakes all who sleep on the word."""
    _call(address, _WAKE_OP, _ALL, None, address, _OR | bits << 12)


def _call(address: int, operation: int, value: int, timeout: None, second: int | None, how: int) -> None:
    number, call = _system_call()
    pointer = ctypes.c_void_p
    if call(number, pointer(address), operation, ctypes.c_uint32(value), timeout, pointer(second), how) < 0:
        error = ctypes.get_errno()
        if error not in (errno.EAGAIN, errno.EINTR):
            raise OSError(error, os.strerror(error))


@cache
def _system_call() -> tuple[ctypes.c_long, ctypes._NamedFuncPointer]:
    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"processes cannot wait for each other on a {platform.machine()} machine yet")
    return ctypes.c_long(number), ctypes.CDLL(None, use_errno=True).syscall

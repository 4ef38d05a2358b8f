"""Probes that die, hang, lie or fail, beside good ones; they run in child processes."""

from __future__ import annotations

import ctypes
import os
import sys
import time

from gfxgraph.probing.probes.here import Absent, Unprobed


def good(here):
    here.equal("one and one is", 1 + 1, 2)


def aborts(here):
    print("the driver says no", file=sys.stderr, flush=True)
    os.abort()


def segfaults(here):
    ctypes.string_at(0)


def exits(here):
    os._exit(0)


def hangs(here):
    here.equal("one and one is", 1 + 1, 2)
    time.sleep(60)


def wrong(here):
    here.equal("one and one is", 1 + 1, 3)


def proves_nothing(here):
    pass


def raises(here):
    raise OSError("no such device")


def absent(here):
    raise Absent("it is not there")


def unprobed(here):
    raise Unprobed("a package is missing")


def prints(here):
    print('{"key": "prints", "kind": "absent", "text": "a library", "seconds": 0}', flush=True)
    os.system("echo a child of it")
    here.equal("one and one is", 1 + 1, 2)


_calls = []


def second(here):  # fails after another in the same process, and not alone
    here.equal("probes before:", len(_calls), 0)


def first(here):
    _calls.append(1)
    here.equal("one and one is", 1 + 1, 2)


PROBES = {
    name: one for name, one in globals().items() if getattr(one, "__module__", "") == __name__
}

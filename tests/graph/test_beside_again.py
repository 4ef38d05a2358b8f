"""A launch may call Python, fork or meet lost memory while a thread of ours compares words."""

import subprocess
import sys

import pytest

from gfxgraph.graph import words

if words.Words is None or sys.platform != "linux":
    pytest.skip("there is no compiled part", allow_module_level=True)

COMPILED = sys.modules[words.Words.__module__].__file__
ASKS = f"""
import array, ctypes, faulthandler, importlib.util, os, sys, threading, time
spec = importlib.util.spec_from_file_location("_compiled", {COMPILED!r})
compiled = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compiled)
libc = ctypes.CDLL(None)
sleep = ctypes.cast(libc.usleep, ctypes.c_void_p).value
held = array.array("Q", [1])

def asking(expected=1, count=40_000, last=None):
    pairs = array.array("Q", [held.buffer_info()[0], expected] * count)
    pairs[-1] = expected if last is None else last
    return compiled.Words(pairs.tobytes())

def launch(asks, function):
    called = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64)(function)
    return asks.beside(ctypes.cast(called, ctypes.c_void_p).value, 0, 0)

faulthandler.dump_traceback_later(20, exit=True)
asking().beside(sleep, 10_000, 0)  # the thread is there
"""


def ran(script):
    command = [sys.executable, "-W", "ignore", "-c", ASKS + script]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("pause", [0, 0.02])
@pytest.mark.parametrize("outer", [1, 2])
@pytest.mark.parametrize("inner", [1, 2])
def test_a_launch_that_asks_in_turn_gives_each_its_own_answer(outer, inner, pause):
    done = ran(
        "def again(graph, stream):\n"
        f"    time.sleep({pause})\n"
        f"    print(asking(last={inner}).beside(sleep, 20_000, 0))\n"
        "    return 0\n"
        f"print(launch(asking(last={outer}), again))\n"
    )
    assert done.stdout == f"(0, {inner == 1})\n(0, {outer == 1})\n", done.stderr


def test_another_thread_may_ask_during_a_launch_that_lets_it():
    done = ran(
        "def other():\n"
        "    print(asking(last=2).beside(sleep, 20_000, 0))\n"
        "def lets(graph, stream):\n"
        "    thread = threading.Thread(target=other)\n"
        "    thread.start()\n"
        "    thread.join()\n"
        "    return 0\n"
        "print(launch(asking(), lets))\n"
    )
    assert done.stdout == "(0, False)\n(0, True)\n", done.stderr


def test_a_child_that_begins_during_a_launch_compares_by_itself():
    done = ran(
        "import signal\n"
        # So many words that they are being compared when the child begins.
        "asks, children = asking(count=10_000_000), []\n"
        "os.register_at_fork(after_in_child=lambda: signal.alarm(5))\n"
        "def forks(graph, stream):\n"
        "    time.sleep(0.0005)\n"
        "    children.append(os.fork())\n"
        "    return 0\n"
        "answer = launch(asks, forks)\n"
        "if children == [0]:\n"
        "    right = answer[1] and asking().beside(sleep, 10_000, 0)[1]\n"
        "    os._exit(0 if right and not asking(last=2).beside(sleep, 10_000, 0)[1] else 1)\n"
        "print(answer, os.waitpid(children[0], 0)[1])\n"
    )
    assert done.stdout == "(0, True) 0\n", done.stderr


def test_a_fault_of_the_thread_is_told_as_one_of_the_program_is():
    done = ran(
        "faulthandler.enable()\n"
        "compiled.Words(array.array('Q', [8, 1] * 4).tobytes()).beside(sleep, 200_000, 0)\n"
    )
    assert done.returncode < 0
    assert "Segmentation fault" in done.stderr

"""A child of ``fork()`` starts with nothing underway, whatever other threads were doing."""

from __future__ import annotations

import os
import textwrap

import pytest

from tests.helpers.devices import HAS_GPU
from tests.helpers.processes import python
from tests.helpers.sampled import sampled

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
on_the_emulated_device = pytest.mark.skipif(HAS_GPU, reason="a child cannot use a GPU")

# What all of these programs begin with. A child that stands still is killed and its stacks shown.
_BEGINNING = """
    import faulthandler, gc, os, sys, threading, time, torch, gfxgraph
    from contextlib import contextmanager
    from gfxgraph.device import current_device
    from gfxgraph.graph.locks import CAPTURING, LOCK, is_inside_gfxgraph

    torch.set_num_threads(1)
    device = gfxgraph.device_type()

    def right(graph, fn, shapes=((4,), (5,), (6,))):
        for shape in shapes:
            for sign in (1, -1, 1):
                x = sign * torch.arange(1.0, 1 + shape[0], device=device)
                assert torch.equal(graph(x), fn(x)), (shape, sign)

    def in_child(work):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            faulthandler.dump_traceback_later(20, exit=True)
            try:
                said = work() or "fine"
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(write, str(said).encode())
            os._exit(0)
        os.close(write)
        said = os.read(read, 10_000).decode()
        os.waitpid(child, 0)
        return said or "the child died or stood still"

    @contextmanager
    def locks_held_on_another_thread():
        held, done = threading.Event(), threading.Event()

        def hold():
            with CAPTURING, LOCK:
                held.set()
                done.wait(60)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        yield
        done.set()
        thread.join()

    def masked(x):
        return x[x > 0].sum() + x
"""


def run(program: str) -> str:
    """What ``program`` prints, run in a process of its own."""
    code = textwrap.dedent(_BEGINNING) + textwrap.dedent(program)
    # Not as a user's: to fork and to write to a pipe would be reasons against a graph.
    done = python("-c", f"exec(compile({code!r}, '<frozen program>', 'exec'), globals())")
    print(done.stderr[-6000:])  # the stacks of a child that stood still
    assert done.returncode == 0
    return done.stdout.strip()


@on_the_emulated_device
def test_a_child_replays_at_once_while_another_thread_of_its_parent_holds_the_locks():
    program = """
        graph = gfxgraph.graphed(masked)
        right(graph, masked)

        def work():
            before = graph.stats()
            right(graph, masked)  # known
            right(graph, masked, [(7,), (8,)])  # new: captures of its own
            after = graph.stats()
            assert not after.fallbacks, after.fallbacks
            return (after.replays > before.replays, after.captures > before.captures)

        with locks_held_on_another_thread():
            print(in_child(work))
    """
    assert run(program) == "(True, True)"


def test_a_child_collects_garbage_whatever_other_threads_pause_in_its_parent():
    program = """
        from gfxgraph.graph.locks import no_garbage_collection

        sys.setswitchinterval(1e-6)
        stop = False

        def pauses():
            while not stop:
                with no_garbage_collection():
                    pass

        threads = [threading.Thread(target=pauses) for _ in range(3)]
        for thread in threads:
            thread.start()
        said = {in_child(lambda: "" if gc.isenabled() else "it does not") for _ in range(60)}
        stop = True
        for thread in threads:
            thread.join()
        print(said, gc.isenabled())
    """
    assert run(program) == "{'fine'} True"


def test_nobody_waits_in_a_child_for_the_call_in_which_it_was_forked():
    program = """
        from gfxgraph.graph.locks import Gate

        gate = Gate()
        with gate.passing():
            child = os.fork()
        if child:
            os.waitpid(child, 0)
        else:
            def alone():
                with gate.alone() as is_free:
                    print(is_free, flush=True)

            thread = threading.Thread(target=alone)
            thread.start()
            thread.join()
            os._exit(0)
    """
    assert run(program) == "True"


@pytest.mark.long
@on_the_emulated_device
def test_children_are_right_while_threads_of_their_parent_capture_and_replay():
    program = """
        fns = [masked, lambda x: x * 2 + 1, lambda x: x.relu().cumsum(0)]
        graphs = [gfxgraph.graphed(fn) for fn in fns]
        for graph, fn in zip(graphs, fns):
            right(graph, fn)
        sys.setswitchinterval(1e-4)
        stop = False

        def busy_thread(seed):
            while not stop:
                for graph, fn in zip(graphs, fns):
                    right(graph, fn)
                    if seed == 0:
                        graph.reset()

        threads = [threading.Thread(target=busy_thread, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()

        def work():
            assert not is_inside_gfxgraph() and gc.isenabled()
            assert not current_device().is_capturing()
            for _ in range(2):
                for graph, fn in zip(graphs, fns):
                    right(graph, fn)
                    graph.reset()

        for _ in range(12):
            said = in_child(work)
            if said != "fine":
                print(said)
            time.sleep(0.02)
        stop = True
        for thread in threads:
            thread.join()
        print("done")
    """
    assert run(program) == "done"


@on_the_emulated_device
@pytest.mark.long
@pytest.mark.parametrize("branches", [False, True])
def test_a_child_that_is_forked_in_the_middle_of_a_capture_does_not_believe_that_it_captures(
    branches,
):
    program = """
        def work():
            assert not is_inside_gfxgraph() and gc.isenabled()
            assert not current_device().is_capturing()
            assert not torch._C._len_torch_dispatch_stack()
            assert not torch._C._len_torch_function_stack()
            assert LOCK.acquire(False) and CAPTURING.acquire(False)
            LOCK.release(), CAPTURING.release()
            x = torch.tensor([1.0, -2.0], device=device)
            assert (x + 1).tolist() == [2.0, -1.0]  # it runs, and can be read
            right(other, masked)
            return "captured" if other.stats().captures else str(other.stats())

        heard, say = os.pipe()  # no state in Python, which would be a reason against a graph

        def fn(x):
            y = masked(x) if BRANCHES else x + 1
            os.write(say, f"{current_device().is_capturing()} {in_child(work)}\\n".encode())
            return y * 2

        other, graph = gfxgraph.graphed(masked), gfxgraph.graphed(fn)
        graph(torch.arange(3.0, device=device))
        said = sorted(set(os.read(heard, 10_000).decode().splitlines()))
        print(graph.stats().captures, said)
    """
    expected = "1 ['False captured', 'True captured']"
    assert run(program.replace("BRANCHES", str(branches))) == expected


@pytest.mark.gpu
def test_on_a_gpu_the_error_of_torch_comes_at_once():
    program = """
        graph = gfxgraph.graphed(lambda x: x + 1)
        x = torch.ones(3, device=device)
        graph(x), graph(x)

        def work():
            start = time.monotonic()
            try:
                graph(x)
            except RuntimeError as error:
                return ("CUDA" in str(error) or "HIP" in str(error), time.monotonic() - start < 4)
            return "no error"

        with locks_held_on_another_thread():
            print(in_child(work))
    """
    assert run(program) == "(True, True)"


@on_the_emulated_device
def test_no_lock_of_a_module_is_held_in_a_child():
    program = """
        import gfxgraph.compiling.log, gfxgraph.compiling.vendor
        for name in gfxgraph.__all__:
            getattr(gfxgraph, name)
        gfxgraph.graphed(masked)(torch.ones(3, device=device))
        kinds = type(threading.Lock()), type(threading.RLock())
        locks = {
            f"{module}.{name}": lock
            for module in list(sys.modules) if module.partition(".")[0] == "gfxgraph"
            for name, lock in vars(sys.modules[module]).items() if type(lock) in kinds
        }
        del locks["gfxgraph.interpose.patch._lock"]  # fork() waits for that one
        held, done = threading.Event(), threading.Event()

        def hold():
            for lock in locks.values():
                lock.acquire()
            held.set()
            done.wait()
            for lock in locks.values():
                lock.release()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()

        def work():
            return [name for name, lock in locks.items() if not lock.acquire(timeout=1)]

        said = in_child(work)
        done.set()
        thread.join()
        print(len(locks) > 6, said)
    """
    assert run(program) == "True fine"


_REPLACING = """
    import gc, logging
    from torch import distributed as dist
    from gfxgraph.device import current_device, emulated_shapes
    from gfxgraph.device.overrides import hidden_modes
    from gfxgraph.graph import age
    from gfxgraph.interpose import dynamo, interrupts, patch
    from gfxgraph.interpose.dynamo import Uncompiled
    from gfxgraph.interpose.interrupts import held_back
    from gfxgraph.record import collectives, interceptor
    from gfxgraph.record.side_effects import no_side_effects

    @contextmanager
    def inside_on_another_thread(*managers):
        entered, done = threading.Event(), threading.Event()

        def inside():
            with ExitStack() as stack:
                for manager in managers:
                    stack.enter_context(manager())
                entered.set()
                done.wait(60)

        thread = threading.Thread(target=inside)
        thread.start()
        entered.wait()
        yield
        done.set()
        thread.join()
"""


@on_the_emulated_device
def test_nothing_that_another_thread_has_replaced_for_its_capture_is_replaced_in_a_child():
    program = """
        from contextlib import ExitStack
        import torch._dynamo
        REPLACING
        os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="0")
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        gfxgraph.graphed(masked)(torch.ones(3, device=device))  # whatever is imported is there now

        def found():
            return [
                dist.ProcessGroup.allreduce, torch.ops.c10d.allreduce_._op, gc.callbacks[:],
                torch.overrides.has_torch_function, torch._C._only_lift_cpu_tensors(),
                logging.getLogger("torch._subclasses.fake_tensor").disabled,
                torch._dynamo.eval_frame._stance, sys.stdout, logging.Logger.callHandlers,
                {key[1] for key, place in patch._places.items() if place.users},
                gc.isenabled(), gc.get_freeze_count(), dynamo._aside[:],
            ]

        before = found()

        def work():
            now = found()
            right(gfxgraph.graphed(masked), masked)
            return [n for n, (a, b) in enumerate(zip(before, now)) if a != b] + [
                n for n, (a, b) in enumerate(zip(before, found())) if a != b
            ]

        with inside_on_another_thread(
            collectives.refused, emulated_shapes._one_at_a_time, hidden_modes, Uncompiled,
            interceptor.lifting_of_host_data, no_side_effects,
        ):
            assert found() != before
            said = in_child(work)
        print(said, found() == before)
    """
    program = textwrap.dedent(program).replace("REPLACING", textwrap.dedent(_REPLACING))
    assert run(program) == "fine True"


@on_the_emulated_device
def test_what_is_replaced_for_good_is_replaced_in_a_child_too():
    program = """
        thread = threading.Thread(target=gfxgraph.enable)
        thread.start()
        thread.join()
        print(in_child(lambda: torch.cuda.CUDAGraph is gfxgraph.BridgedCUDAGraph))
    """
    assert run(program) == "True"


def test_a_child_answers_from_graphs_whatever_another_thread_of_its_parent_pauses():
    program = """
        graph = gfxgraph.graphed(masked)
        right(graph, masked)
        entries = graph._dispatcher.entries
        entries.pause(True)
        print(in_child(lambda: (entries.is_paused, graph._dispatcher._others != ())))
    """
    assert run(program) == "(False, True)"


def test_a_child_frees_what_another_thread_was_about_to_move_to_the_old_generation():
    program = """
        from gfxgraph.graph.age import _age

        sys.setswitchinterval(1e-6)
        stop = False

        def moves():
            while not stop:
                _age()

        _age()  # Python 3.12 itself has frozen something
        frozen = gc.get_freeze_count()
        thread = threading.Thread(target=moves)
        thread.start()
        said = {in_child(lambda: gc.get_freeze_count() == frozen) for _ in range(100)}
        stop = True
        thread.join()
        print(said)
    """
    assert run(program) == "{'True'}"


@pytest.mark.parametrize("who", sampled(["another", "main"], 2))
def test_signal_handlers_are_the_programs_own_in_a_child(who):
    program = """
        import signal
        from gfxgraph.interpose import interrupts
        from gfxgraph.interpose.interrupts import held_back

        class Alarm(Exception):
            pass

        def handler(number, frame):
            raise Alarm

        signal.signal(signal.SIGUSR1, handler)

        def work():
            assert signal.getsignal(signal.SIGUSR1) is handler
            assert not interrupts._blocks
            graph = gfxgraph.graphed(masked)
            if device == "cpu":
                right(graph, masked)
            try:
                with held_back():
                    signal.raise_signal(signal.SIGUSR1)
            except Alarm:
                return str(interrupts._blocks)

        with held_back():
            if WHO == "main":
                print(in_child(work))
            else:
                thread = threading.Thread(target=lambda: print(in_child(work)))
                thread.start()
                thread.join()
    """
    assert run(program.replace("WHO", repr(who))) == "0"

"""Attributes of others are replaced per thread, counted, and put back exactly as they were."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import random
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import gfxgraph
from gfxgraph.interpose import patch
from gfxgraph.interpose.modules import import_whole, loaded
from gfxgraph.interpose.patch import find, intercept, override, substitute


class Base:
    def inherited(self, x):
        return ("inherited", x)

    @property
    def size(self):
        return 3


class Thing(Base):
    __slots__ = ("slot",)

    def method(self, x=1):
        return ("method", x)

    @staticmethod
    def static(x):
        return ("static", x)

    @classmethod
    def of_class(cls, x):
        return (cls.__name__, x)

    @property
    def width(self):
        return 5

    @width.setter
    def width(self, value):
        self.slot = value

    length = len


@pytest.fixture
def module():
    made = types.ModuleType("made")
    made.function = lambda x: ("function", x)
    made.stream = io.StringIO()
    made.Class = Thing
    return made


def in_another_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def ours(original, *args, **kwargs):
    return ("ours", original(*args, **kwargs))


CALLS = {
    "method": lambda thing: thing.method(2),
    "inherited": lambda thing: thing.inherited(2),
    "static": lambda thing: thing.static(2),
    "of_class": lambda thing: thing.of_class(2),
    "width": lambda thing: thing.width,
    "size": lambda thing: thing.size,
    "length": lambda thing: thing.length([1, 2]),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_kind_of_attribute_of_a_class_is_replaced_and_put_back(name):
    before, call = dict(vars(Thing)), CALLS[name]
    plain = call(Thing())
    with intercept(Thing, name, ours):
        assert call(Thing()) == ("ours", plain)
        assert in_another_thread(lambda: call(Thing())) == plain
    assert dict(vars(Thing)) == before and call(Thing()) == plain
    assert all(vars(Thing)[key] is value for key, value in before.items())


def test_what_is_written_through_a_replaced_property_arrives():
    with intercept(Thing, "width", ours):
        thing = Thing()
        thing.width = 7
    assert thing.slot == 7


@pytest.mark.parametrize("name", ["__bool__", "item", "tolist", "add", "__new__"])
def test_methods_in_c_and_inherited_ones_come_back(name):
    before = dict(vars(torch.Tensor))
    seen = []

    def handler(original, *args, **kwargs):
        seen.append(name)
        return original(*args, **kwargs)

    with intercept(torch.Tensor, name, handler):
        t = torch.tensor(2.0)
        assert bool(t) and t.item() == t.tolist() == 2 and t.add(1) == 3
        assert isinstance(torch.Tensor([1.0]), torch.Tensor)
    assert name in seen
    assert vars(torch.Tensor).keys() == before.keys()
    assert all(vars(torch.Tensor)[key] is value for key, value in before.items())


def test_a_class_stays_a_class_for_everybody(module):
    with intercept(module, "Class", lambda original, *args: "made by us"):
        assert module.Class() == "made by us"
        assert isinstance(Thing(), module.Class) and issubclass(Thing, module.Class)
        assert type(in_another_thread(lambda: module.Class())) is Thing
    assert module.Class is Thing


def test_a_name_that_is_not_there_is_gone_afterwards(module):
    with intercept(module, "missing", lambda original, x: x + 1):
        assert module.missing(1) == 2
        with pytest.raises(AttributeError, match="missing"):
            in_another_thread(lambda: module.missing(1))
    assert not hasattr(module, "missing")


def test_nested_users_are_asked_from_the_innermost_on(module):
    def of(name):
        return lambda original, x: (name, original(x))

    with intercept(module, "function", of("outer")), intercept(module, "function", of("inner")):
        assert module.function(1) == ("inner", ("outer", ("function", 1)))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (2, 0, 1), (0, 2, 1)])
def test_users_leave_in_any_order(module, order):
    original = module.function
    claims = [intercept(module, "function", ours) for _ in range(3)]
    for left, n in enumerate(order, 1):
        claims[n].undo()
        claims[n].undo()  # does nothing
        assert str(module.function(1)).count("ours") == 3 - left
    assert module.function is original


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_setting_for_all_threads_is_that_of_the_last_user_who_is_still_there(module, order):
    first, second = override(module, "value", 1), override(module, "value", 2)
    assert module.value == 2 == in_another_thread(lambda: module.value)
    claims = first, second
    claims[order[0]].undo()
    assert module.value == (2, 1)[order[0]]
    claims[order[1]].undo()
    assert not hasattr(module, "value")


def test_what_somebody_else_puts_on_top_stays_and_works(module):
    original = module.function
    with intercept(module, "function", ours):
        below = module.function
        theirs = module.function = lambda x: ("theirs", below(x))
        assert module.function(1) == ("theirs", ("ours", ("function", 1)))
    assert module.function is theirs
    assert module.function(1) == ("theirs", ("function", 1))
    module.function = below  # they put back what they found
    assert module.function(1) == ("function", 1)
    with intercept(module, "function", ours):
        assert module.function(1) == ("ours", ("function", 1))
    assert module.function is original  # and now it is as before us


def test_a_setting_on_top_of_ours_stays(module):
    module.value = 0
    with override(module, "value", 1):
        module.value = 5
    assert module.value == 5


def test_what_was_put_on_top_of_ours_is_ours_again_for_a_nested_user(module):
    module.value = 0
    with override(module, "value", 1):
        module.value = 5
        with override(module, "value", 2):
            assert module.value == 2
        assert module.value == 5


def test_errors_undo_everything(module):
    original = module.function

    class Stop(BaseException):
        pass

    def raises(original, x):
        raise Stop

    with pytest.raises(Stop), intercept(module, "function", raises):
        module.function(1)
    assert module.function is original and module.function(1) == ("function", 1)

    class Closed:
        def __setattr__(self, name, value):
            raise TypeError("closed")

    with pytest.raises(TypeError, match="closed"):
        override(Closed(), "value", 1)
    assert not any(isinstance(place.owner, Closed) for place in patch._places.values())


def test_a_stream_is_that_of_the_thread():
    mine, before = io.StringIO(), sys.stdout
    with substitute(sys, "stdout", mine):
        print("here")
        assert isinstance(sys.stdout, io.TextIOBase) and not sys.stdout.closed
        elsewhere = in_another_thread(lambda: sys.stdout == before)
        with contextlib.redirect_stdout(io.StringIO()) as theirs:
            print("there")
        print("here", file=sys.stdout)
    assert sys.stdout is before and elsewhere
    assert mine.getvalue() == "here\nhere\n" and theirs.getvalue() == "there\n"


def test_overlapping_threads_leave_nothing_behind(module):
    names = ["function", "stream", "missing"]
    before = {name: getattr(module, name, None) for name in names}
    stop = threading.Event()
    wrong = []

    def bystander():
        while not stop.is_set():
            if module.function(1) != ("function", 1) or module.stream.tell() != 0:
                wrong.append("a thread that replaced nothing")

    def user(seed):
        numbers = random.Random(seed)
        claims = []
        for _ in range(400):
            if claims and numbers.random() < 0.5:
                claims.pop(numbers.randrange(len(claims))).undo()
            else:
                kind = numbers.randrange(3)
                if kind == 0:
                    claims.append(intercept(module, "function", ours))
                elif kind == 1:
                    claims.append(substitute(module, "stream", io.StringIO("x")))
                else:
                    claims.append(intercept(module, "missing", lambda original, x: x))
            mine = sum(claim.ours is ours for claim in claims)
            if str(module.function(1)).count("ours") != mine:
                wrong.append("a thread that did")
        for claim in claims:
            claim.undo()

    watching = threading.Thread(target=bystander)
    watching.start()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(user, range(8)))
    stop.set()
    watching.join()
    assert not wrong
    assert {name: getattr(module, name, None) for name in names} == before
    assert not any(place.owner is module for place in patch._places.values())


@pytest.mark.long
def test_a_claim_may_be_undone_by_another_thread_and_by_the_garbage_collector(module):
    original = module.function

    class Holder:
        def __init__(self):
            self.claim = intercept(module, "function", ours, everywhere=True)
            self.cycle = self

        def __del__(self):
            self.claim.undo()

    for _ in range(50):
        Holder()
        if random.random() < 0.3:
            with intercept(module, "function", ours):
                gc.collect()
    in_another_thread(gc.collect)
    assert module.function is original


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_has_what_its_own_thread_replaced_and_nothing_of_others(module):
    original = module.function
    entered, done = threading.Event(), threading.Event()

    def other():
        with intercept(module, "function", ours), override(module, "value", 1):
            entered.set()
            done.wait()

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait()
    with substitute(module, "stream", "mine"):
        child = os.fork()
        if child == 0:
            good = module.function is original and module.stream == "mine"
            with intercept(module, "function", ours):
                good &= module.function(1) == ("ours", ("function", 1))
            os._exit(0 if good and module.function is original else 1)
        _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    assert status == 0 and module.function is original


def test_a_path_is_found_only_where_it_is_loaded():
    assert find("torch:Tensor.item") == (torch.Tensor, "item")
    assert find("no_such_module:thing") is None and find("torch:no_such_thing.method") is None


# All that the library ever replaces.


@pytest.fixture
def inventory(monkeypatch):
    """Remembers what was where each attribute is that somebody replaces from now on."""
    found: dict[tuple[int, str], tuple[object, object]] = {}
    init = patch._Place.__init__

    def remembering(place, owner, name):
        if not name.startswith("__") or isinstance(owner, type):
            held = vars(owner).get(name, "nothing") if hasattr(owner, "__dict__") else None
            found.setdefault((id(owner), name), (owner, held))
        init(place, owner, name)

    monkeypatch.setattr(patch._Place, "__init__", remembering)
    return found


def changed(found):
    return [
        f"{owner!r}.{name}"
        for (_, name), (owner, held) in found.items()
        if vars(owner).get(name, "nothing") is not held
    ]


def noisy(x):
    print("noisy")
    return x + 1


def in_use() -> dict[str, int]:
    return {f"{p.owner!r}.{p.name}": len(p.users) for p in patch._places.values() if p.users}


def test_everything_in_eight_threads_leaves_every_attribute_as_it_was(inventory, capsys):
    flag, before = torch._C._only_lift_cpu_tensors(), in_use()
    model = torch.nn.Linear(4, 4)
    errors = []

    def calls(x):
        return (x[x > 0].sum() + x).relu()

    def work(seed):
        numbers = random.Random(seed)
        x = torch.ones(2, 4)

        def a_check():
            assert gfxgraph.check(noisy, x).verdict == "eager"

        def a_capture():
            fast = gfxgraph.graphed(numbers.choice([calls, model.forward, noisy]))
            with torch.no_grad():
                for _ in range(3):
                    fast(x)

        def a_pool():
            with torch.no_grad():
                pool = gfxgraph.ShapeBucketPool(model, [2, 4])
                pool(x)
                pool(x)

        def a_switch():
            gfxgraph.enable()
            with gfxgraph.guard_rng():
                a_capture()
            gfxgraph.disable()

        def a_log():
            with gfxgraph.compile_log():
                a_capture()

        def a_verification():
            gfxgraph.verify(gfxgraph.graphed(calls), x)

        try:
            for _ in range(3):
                numbers.choice([a_check, a_capture, a_pool, a_switch, a_log, a_verification])()
        except Exception as error:
            errors.append(error)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    gfxgraph.disable()
    assert not errors
    assert len(inventory) > 40 and not changed(inventory)
    assert torch._C._only_lift_cpu_tensors() == flag
    assert sys.getprofile() is None and sys.gettrace() is None
    gc.collect()  # captures that other tests have dropped in the middle
    assert {name: users for name, users in in_use().items() if users > before.get(name, 0)} == {}


def test_prints_of_other_threads_are_neither_swallowed_nor_counted(capsys):
    stop, started = threading.Event(), threading.Event()
    printed = 0

    def other():
        nonlocal printed
        while not stop.is_set():
            print("other")
            sys.stderr.write("other\n")
            printed += 1
            started.set()

    def quiet(x):
        return x.sin() + 1

    thread = threading.Thread(target=other)
    thread.start()
    started.wait()
    x = torch.ones(3)
    for _ in range(3):
        assert gfxgraph.check(quiet, x).verdict == "captures"
        fast = gfxgraph.graphed(quiet)
        fast(x)
        fast(x)
        assert not fast.stats().fallbacks and fast.stats().replays == 1
    stop.set()
    thread.join()
    out, err = capsys.readouterr()
    assert out.count("other") == printed and err.count("other\n") >= printed


@pytest.mark.parametrize("fails", [ValueError, KeyboardInterrupt])
def test_a_function_that_raises_leaves_every_attribute_as_it_was(inventory, fails):
    calls = 0

    def raises(x):
        nonlocal calls
        calls += 1
        if calls > 1:
            raise fails
        return x + 1

    with contextlib.suppress(fails):
        gfxgraph.graphed(raises)(torch.ones(3))
    calls = 1
    with contextlib.suppress(fails):
        gfxgraph.check(raises, torch.ones(3))
    assert inventory and not changed(inventory)


def test_stand_ins_look_like_what_they_stand_for(module):
    def documented(x):
        """Documented."""
        return x

    module.function = documented
    with intercept(module, "function", ours):
        assert module.function.__doc__ == "Documented."
        assert module.function.__wrapped__ is documented


# ---- modules that another thread imports


@pytest.fixture
def slow_package(tmp_path, monkeypatch):
    """A package whose import goes on until it is told to end, in a thread of its own."""
    folder = tmp_path / "slow_package"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "import sys\nfrom . import part\ngate = sys.modules['gate_of_test']\n"
        "gate.begun.set()\ngate.end.wait(60)\ndone = True\n"
    )
    (folder / "part.py").write_text("value = 1\n")
    (folder / "other.py").write_text("import slow_package\nwhole = slow_package.done\n")
    gate = types.SimpleNamespace(begun=threading.Event(), end=threading.Event())
    monkeypatch.setitem(sys.modules, "gate_of_test", gate)
    monkeypatch.syspath_prepend(str(tmp_path))
    thread = threading.Thread(target=__import__, args=("slow_package",))
    thread.start()
    assert gate.begun.wait(60)
    yield gate
    gate.end.set()
    thread.join()
    for name in [name for name in sys.modules if name.partition(".")[0] == "slow_package"]:
        del sys.modules[name]


def test_a_module_counts_as_loaded_when_its_import_has_ended(slow_package):
    assert loaded("slow_package") is None and "slow_package" in sys.modules
    assert find("slow_package:part") is None
    assert loaded("slow_package.part").value == 1
    slow_package.end.set()
    assert import_whole("slow_package").done
    assert loaded("slow_package") is sys.modules["slow_package"]
    assert loaded("slow_package.no_such_part") is None


def test_a_part_is_imported_after_its_package(slow_package):
    threading.Timer(0.2, slow_package.end.set).start()
    assert import_whole("slow_package.other").whole

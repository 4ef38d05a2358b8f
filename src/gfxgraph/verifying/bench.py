"""Calls eager and candidates from the same state, inputs and seeds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeAlias

import torch

from ..call.arguments import named, structure
from ..call.signature import Const, Objects, Spec, flatten
from ..device import current_device
from ..device.asserts import OutOfRange
from ..device.overrides import UnwrappedDispatchMode
from ..errors import ArgumentError
from ..graph import raw
from ..graph.host_state import HostState
from ..graph.lift import owner_name
from ..graph.locks import inside_gfxgraph, turn_to_capture
from ..graph.places import Item, Place
from ..graph.reads import Reads
from ..graph.state import PythonState
from ..interpose.dynamo import Uncompiled
from ..interpose.modules import loaded
from ..record.effects import UndoLog, storage_key
from ..record.recorder import Recorder
from ..stats import tally
from .compare import Value, same
from .inputs import Inputs
from .report import Part

__all__ = ["Bench", "Function", "Key", "Round", "Values"]

_PLAIN = (bool, int, float, str)

Function: TypeAlias = Callable[..., Any]
Key: TypeAlias = tuple[Part, str]
Values: TypeAlias = dict[Key, Value]


@dataclass
class _Call:
    """The results of one call.

    Attributes:
        values: part and name -> copies of the values. Of the arguments those that were written.
        raw: the tensors of the result themselves, by name.
        given: part and name -> the tensors that were given.
    """

    values: Values
    raw: dict[str, torch.Tensor]
    given: Values


@dataclass
class Round:
    """One call for each of the inputs, from the initial state.

    Attributes:
        calls: the results of each call.
        state: the outside state that it writes and rebinds, after the last call.
        rebound: the names in it that were rebound.
        overwritten: names of results that a later call changed.
    """

    calls: list[_Call]
    state: Values
    rebound: list[Key]
    overwritten: list[str]


class Bench:
    """Calls functions from the same state, inputs and seeds.

    Args:
        fn: the eager function.
        name: its name.
        inputs: the inputs of each run.
        seed: the seed of the first run.
        threshold: see :func:`verify`.
    """

    def __init__(
        self, fn: Function, name: str, inputs: list[Inputs], seed: int, threshold: float | None
    ) -> None:
        self.fn, self.name, self.inputs, self.seed = fn, name, inputs, seed
        self.threshold = threshold
        self.arguments = inputs[0].names(fn)
        objects = {
            path: const.value
            for path, const in self.arguments.items()
            if const is not None and not const.is_value
        }
        self._roots: dict[str, object] = {owner_name(fn, name): fn, **objects}
        self._python = self._origin = PythonState(self._roots)
        self._generators = self._python.generators
        #: Random generators, iterators, files: what of them can be put back.
        self._host = HostState(current_device(), 0, self._python.stateful)
        self._written: dict[str, torch.Tensor] = {}
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._written_arguments: set[int] = set()
        #: Where else it writes, in Python.
        self._elsewhere: list[Place] = []
        self._calls_graphs = False
        #: Floating-point tensors that the function reads from outside, and does not rebind.
        self.outside: dict[str, torch.Tensor] = {}
        #: Where it reads numbers and strings in Python that it does not rebind.
        self.values: list[Item] = []

    def prepare(self) -> None:
        """Find out what the function changes, and make the reference round."""
        self._learn()
        replays = tally.snapshot()["replay_count"]
        self.expected = self.round(self.eager)
        if tally.snapshot()["replay_count"] > replays:  # of a graphed function inside
            self._calls_graphs = True
            self.expected = self.round(self.eager)

    def eager(self, *args: Any, **kwargs: Any) -> Any:
        """The function, without graphs of what it calls."""
        with inside_gfxgraph(), _no_replays() if self._calls_graphs else nullcontext():
            return self.fn(*args, **kwargs)

    def written_after(
        self, change: Callable[[], object], seconds: float
    ) -> list[torch.Tensor] | None:
        """The memory outside that the function writes to after a change; it is as before again.

        Another number may keep a loop from ending: after so many seconds the function ends at its
        next operation.

        Returns:
            The memory; ``None``: the function did not end in time, or cannot run so.
        """
        self.restart()
        undo = UndoLog()
        args, kwargs, copies = self.inputs[0].make()
        recorder = Recorder(current_device().type, copies, undo, True, is_tried=True)
        self._set_seed(0)
        try:
            change()
            with inside_gfxgraph(), _NoReplays(monotonic() + seconds), recorder.watching():
                self.fn(*args, **kwargs)
        except (_TooLongError, OutOfRange):
            return None
        except (Exception, SystemExit):
            pass  # the next call raises it as well
        finally:
            undo.undo()
            self.restart()
        own = set(map(storage_key, copies))
        return [region for region in undo.regions() if storage_key(region) not in own]

    def round(self, function: Function) -> Round:
        """Call with each of the inputs, one after the other, from the initial state."""
        self.restart()
        calls = [self._call(function, given, run) for run, given in enumerate(self.inputs)]
        state: Values = {("state", path): memory.clone() for path, memory in self._written.items()}
        rebound: Values = {
            ("state", path): value.clone() if isinstance(value, torch.Tensor) else Const(value)
            for path, value in self._changed().items()
        }
        overwritten = [
            name
            for name in calls[0].raw
            if any(
                name in call.raw and not _is_still(call.raw[name], call.values["output", name])
                for call in calls
            )
        ]
        for call in calls:
            call.raw.clear()
        self.restart()
        return Round(calls, state | rebound, list(rebound), overwritten)

    def once(
        self,
        function: Function,
        given: Inputs | None = None,
        run: int = 0,
        before: Callable[[], object] = lambda: None,
        times: int = 1,
    ) -> list[Values]:
        """Make ``times`` calls from the initial state, after ``before``; return the results of
        each.

        Args:
            function: the function to call.
            given: the inputs. Default: those of the first run.
            run: the run whose seed to use.
            before: makes a change first.
            times: how many calls in a row, each with the same seed.
        """
        self.restart()
        before()
        found = []
        for _ in range(times):
            values = self._call(function, given or self.inputs[0], run).values
            for path, memory in self._written.items():
                values["state", path] = memory.clone()
            found.append(values)
        self.restart()
        return found

    def call(self, function: Function) -> None:
        """Call with the first inputs, and leave the state as that does."""
        self.restart()
        self._call(function, self.inputs[0], 0)

    def restart(self) -> None:
        """Restore the outside state that calls have changed."""
        for memory, value in self._kept:
            memory.copy_(value)
        self._python.restore()
        for place in self._elsewhere:
            if not place.holds():
                place.put_back()
        self._host.rewind()

    def draw_again(self) -> None:
        """Let the next call draw the random numbers that the first one drew."""
        self._set_seed(0)

    def advanced(self) -> list[str]:
        """Names of what calls have advanced and nobody can put back."""
        self._host.rewind()
        return [name for name, is_random in self._host.moved().items() if not is_random]

    def _changed(self) -> dict[str, object]:
        """Names and values of what is bound in Python since the last restart."""
        elsewhere = {
            place.path: place.read()
            for place in self._elsewhere
            if isinstance(place, Item) and not place.holds()
        }
        return elsewhere | self._python.changed()

    @contextmanager
    def all_put_back(self) -> Iterator[None]:
        """Restore state and random generators at the end."""
        gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
        try:
            with torch.random.fork_rng(devices=gpus):
                yield
        finally:
            self._origin.restore()
            self.restart()

    def _learn(self) -> None:
        """Run with all inputs; remember what the function reads, writes and rebinds; restore it."""
        undo = UndoLog()
        device = current_device()
        names = self._python.names()
        unnamed: set[int] = set()
        read: set[int] = set()
        places: dict[Any, Place] = {}
        met: dict[Any, Place] = {}
        try:
            for run, given in enumerate(self.inputs):
                args, kwargs, copies = given.make()
                recorder = Recorder(device.type, copies, undo, True, is_tried=run > 0)
                reads = Reads(self._roots, copies)
                self._set_seed(run)
                with turn_to_capture(), inside_gfxgraph(), recorder.watching(), reads.recording():
                    self.fn(*args, **kwargs)
                places.update({} if reads.failed else reads.places)
                met = reads.places | met
                written = {key for key, _ in recorder.recording.writes}
                own = {storage_key(copy): n for n, copy in enumerate(copies)}
                self._written_arguments |= {own[key] for key in written & own.keys()}
                read |= recorder.recording.outside.keys()
                if run == 0:  # later, tensors of the first run are outside too
                    unnamed = written - own.keys() - names.keys()
        finally:
            undo.undo()
            rebound = self._python.changed()
            self._python.restore()
            # Such as a global variable of a hook.
            self._elsewhere = [place for place in met.values() if not place.holds()]
            for place in self._elsewhere:
                place.put_back()
        # A manual capture leaves a static output there, which each replay overwrites.
        for path, tensor in self._python.tensors():
            if path in rebound:
                self._keep(tensor)
        self._python = PythonState(self._roots)  # with attributes that a first call adds
        for region in undo.regions():
            key = storage_key(region)
            path = names.get(key) or (f"a tensor ({len(self._written)})" if key in unnamed else "")
            if path and path not in self._written:
                self._written[path] = self._keep(region)
                unnamed.discard(key)
        self.outside = {
            path: tensor
            for path, tensor in self._python.tensors()
            if tensor.is_floating_point()
            and tensor.numel()
            and not tensor.is_inference()
            and storage_key(tensor) in read
            and path not in rebound
        }
        self.values = [
            place
            for place in places.values()
            if type(place) is Item and raw.is_scalar(place.value) and raw.is_a(place.value, *_PLAIN)
            if place.holds()
        ]

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Restore all of the memory of ``tensor`` at each restart."""
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        memory = empty.set_(tensor.untyped_storage())
        self._kept.append((memory, memory.clone()))
        return memory

    def _set_seed(self, run: int) -> None:
        seed = self.seed + run
        torch.manual_seed(seed)
        random.seed(seed)
        numpy = loaded("numpy.random")
        if numpy is not None:
            numpy.seed(seed % 2**32)
        for generator in self._generators:
            generator.manual_seed(seed)

    def _call(self, function: Function, given: Inputs, run: int) -> _Call:
        args, kwargs, copies = given.make()
        self._set_seed(run)
        result = function(*args, **kwargs)
        leaves, spec = _taken_apart(result)
        found = iter(leaves)
        values: Values = {}
        raw: dict[str, torch.Tensor] = {}
        for name, const in named(spec, "out"):
            if const is None:
                raw[name] = next(found)
            values["output", name] = const or raw[name].detach().clone()
        values["output", "structure"] = Const(structure(spec))
        tensors = [name for name, const in given.names(self.fn).items() if const is None]
        kept: Values = {}
        for n, (name, leaf, copy) in enumerate(zip(tensors, given.leaves, copies, strict=True)):
            kept["argument", name] = leaf
            # A candidate may write to others than the function does.
            if n in self._written_arguments or not same(copy, leaf):
                values["argument", name] = copy
        return _Call(values, raw, kept)


class _TooLongError(BaseException):
    """A call does not end in time. The function is not to catch it as an ``Exception``."""


class _NoReplays(UnwrappedDispatchMode):
    # Under a mode like this one gfxgraph makes no graph and replays none.
    supports_higher_order_operators = True

    def __init__(self, until: float = math.inf) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._until = until

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if monotonic() > self._until:
            raise _TooLongError
        return func(*args, **(kwargs or {}))


@contextmanager
def _no_replays() -> Iterator[None]:
    with Uncompiled(), _NoReplays():
        yield


def _taken_apart(result: Any) -> tuple[list[torch.Tensor], Spec]:
    try:
        return flatten(result, Objects())
    except ArgumentError:  # the class of a generator, say, can be compared
        return [], ("const", Const(result))


def _is_still(tensor: torch.Tensor, value: Value) -> bool:
    try:
        return same(tensor.detach(), value)
    except RuntimeError:  # CUDA graph trees refuse to read a result that was overwritten
        return False

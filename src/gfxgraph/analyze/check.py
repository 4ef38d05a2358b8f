"""``check``: finds out without a GPU what a graph would make of a function."""

from __future__ import annotations

import builtins
import reprlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from ..call.body import CHANGES, require_storable
from ..call.builder import MADE_PARAMETER
from ..call.entry import SHARED
from ..call.graphed import Graphed
from ..call.held import Advance, Held, holds_way, is_used, written_as
from ..call.key import MODES_LEFT, conditions
from ..call.narrow import ObjectArguments, parts_of_arguments
from ..call.replay import builder
from ..call.signature import Arguments, Given, Objects, constants, flatten
from ..call.static_inputs import shares_memory
from ..call.suitable import check_function, describe, unsuitable
from ..device.capture_rules import is_move
from ..device.emulated import EmulatedDevice
from ..device.operators import is_view
from ..errors import ArgumentError, CaptureError, DeviceError, one_line
from ..graph.host_state import HostState
from ..graph.lift import Slot, owner_name
from ..graph.locks import inside_gfxgraph
from ..graph.one_shots import Found
from ..graph.places import Place
from ..graph.reads import Reads
from ..graph.state import PythonState
from ..graph.static_objects import StaticObjects
from ..interpose.codes import address
from ..interpose.interrupts import held_back, own_handlers
from ..interpose.modules import import_whole
from ..interpose.patch import intercept
from ..interpose.source import (
    LineFinder,
    Source,
    is_raised_by_code,
    name_of,
    users_line,
    users_line_of,
)
from ..record.collectives import pretended, refused
from ..record.effects import UndoLog, Unexpected, storage_key
from ..record.interceptor import Point
from ..record.recorder import Recorder, Recording
from ..record.rules import RULES, Effect
from ..record.side_effects import side_effects
from ..simulate.tensor import SimulatedTensor, local
from ..simulate.world import SimulatedCuda
from .remedies import remedy
from .report import CheckReport, Hazard, Severity, Watched
from .writes import Call, is_of_one_kind, written

__all__ = ["check"]

# State that settles, such as a queue that fills up, has settled by then in code as people write it.
_RUNS = 6
_SEVERITIES: dict[Effect, Severity] = {
    "captures": "note",
    "folds": "note",
    "branches": "warning",
    "eager": "error",
}
_ORDER: tuple[Severity, ...] = ("error", "warning", "note")
_OURS = ("argument ", *(f"Simulated{what}." for what in ("Event", "Generator", "Stream", "Tensor")))
# The error of autograd in a build without accelerators, for tensors that say they are on one.
_NO_ACCELERATOR = "Cannot access accelerator device"


def check(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> CheckReport:
    """Run ``fn`` as on a GPU, without one, and report what a graph would make of it.

    Tensors among the arguments, and parameters and buffers that ``fn`` reaches, count as on a
    simulated ``cuda:0``, whose work the CPU does. For tensors on the meta device nothing is
    computed, and values that the host reads are made up. ``fn`` runs under ``torch.no_grad()``,
    as with :func:`~gfxgraph.graphed`, twice or more. Its writes and rebinding are undone.

    Args:
        fn: the function, module or method. It may say ``device="cuda"``, ``.cuda()`` and
            ``torch.cuda.synchronize()``.
        *args: its arguments; tensors may be on the CPU, on meta or on a GPU.
        **kwargs: its keyword arguments.

    Returns:
        The report: ``report.verdict`` and ``report.hazards``.

    Raises:
        ArgumentError: ``fn`` is not callable.
        DeviceError: an operator has neither a meta implementation nor data to run on; or the
            function uses autograd, and torch is a CPU build.
    """
    check_function(fn, "check()")
    with held_back(all_leave=True):
        run = _Check(fn)
        around: AbstractContextManager[Any] = nullcontext((args, kwargs))
        if local.world is not None:
            around = local.world.suspended((args, kwargs))
        try:
            with around as (args, kwargs), own_handlers():
                run.twice(args, kwargs)
        finally:
            run._recorder = None  # which knows tensors by weak references
            run.world.dissolve()
    run.report.hazards.sort(key=lambda hazard: _ORDER.index(hazard.severity))
    return run.report


@dataclass
class _Run:
    """One run: Python's state before it, what was recorded, and its result, taken apart."""

    before: PythonState
    recording: Recording
    written: set[int]  # storage keys of the outside tensors that it wrote to
    leaves: list[torch.Tensor]
    spec: Any
    objects: list[object]  # of which the result was made, and what it stored in arguments
    reads: Reads
    left: list[Any]  # what it has left in its arguments, taken apart


class _Check:
    def __init__(self, fn: Callable[..., Any]) -> None:
        self._name = name_of(fn)
        while type(fn).__module__ == Graphed.__module__:
            fn = fn.__wrapped__  # type: ignore[attr-defined]
        self._fn = fn
        self.world = SimulatedCuda(self._observe)
        self._written: list[Any] = []  # identities of the places in Python that each call writes
        self._given, self._objects = StaticObjects(), ObjectArguments()
        self._stored: dict[str, str] = {}  # names of places in arguments, and their rules
        self._left: list[Any] = []  # what a run has left there, taken apart
        self._met: list[object] = []  # and the objects that it is made of
        self._leaves_modes = False
        self._is_running = False
        self._expected: Any = None  # the structure of what a lifted function gives
        self._again()

    def _again(self) -> None:
        self.report = CheckReport(
            self._name, device="cuda (simulated on the CPU)", torch=torch.__version__
        )
        self._recorder: _Recorder | None = None
        self._forked: dict[Any, Source] = {}

    def twice(self, args: Any, kwargs: Any) -> None:
        """Run twice: the first run shows what changes from call to call, the second is reported.

        While state is settling, as a queue that fills up does, it runs again.
        """
        while self._takes_more_apart(args, kwargs):
            pass

    def _takes_more_apart(self, args: Any, kwargs: Any) -> bool:
        """Do so; gives whether objects among the arguments have to be taken apart for that."""
        self._again()
        taken_apart = self._suitable(args, kwargs)
        if taken_apart is None:
            return False
        given, self._spec = taken_apart
        import_whole("torch._dynamo")  # torch does so in a run, which would take longer there
        opaque = [const.value for const in constants(self._spec) if not const.is_value]
        self._roots = {owner_name(self._fn, self._name): self._fn} | {
            f"argument {n}": v for n, v in enumerate(opaque)
        }
        found = PythonState(self._roots).stateful
        numbers = self._numbers(found)
        with self.world, torch.no_grad(), inside_gfxgraph():
            self._take(given)
            as_it_was = PythonState(self._roots)
            for name in as_it_was.scripted:
                self._add("torchscript", name, Source())
            if as_it_was.scripted:
                return False
            self.world.adopt(self._fn, *opaque)
            self.names = as_it_was.names() | {
                storage_key(t): f"argument {n}" for n, t in enumerate(self.inputs)
            }
            try:
                first = self._run(varying=set())
                if first is not None and self._learns_classes(first, opaque):
                    return True
                others = {id(tensor): _alias(tensor) for tensor in given}
                self._take([others[id(tensor)] for tensor in given])  # as those of a graph are
                last = first and self._run(first.written, first.objects)
                for _ in range(_RUNS):
                    if first is None or last is None or not _is_settling(last):
                        break
                    last = self._run(first.written, first.objects)
                if first is None or last is None:
                    return False
                changed, finder = self._changes(last, first.objects, numbers, found)
            finally:
                as_it_was.restore()
                numbers.rewind()
            # Not all that the first run has changed: it may have imported modules.
            for identity in self._written:
                place = first.reads.places.get(identity)
                if place is not None:
                    place.put_back()
        self.report.unwatched = last.reads.failed
        if last.reads.refusal is not None:
            self._raised(last.reads.refusal)
        if not last.reads.failed:
            self.report.watched = _watched(first.reads, last.reads, {*self._written, *changed})
        stores = any(not name.startswith("argument ") for name in changed)
        idles = stores and all(_only_views(func) for func, _ in last.recording.kernels)
        moved = _by_container(changed, finder)
        if idles:  # how the places change is beside the point
            lines = [where for *_, where in moved]
            self._add("no-work", "no operation but views", max(lines, key=lambda one: one.line))
            moved = {}
        for (_, rule, reason, where), names in moved.items():
            what = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more items"
            self._add(rule, f"{what} ({reason})" if reason else what, where)
        not_held = last.reads.not_held(stores, bool(last.recording.breaks()))
        if not_held:
            self._add("python-state", not_held, Source())
        self._compare(first, last, finder.returned)
        met = Arguments(self._objects.classes)
        flatten((args, kwargs), met)
        if not last.reads.may_not_be_given().isdisjoint(map(address, met.containers())):
            self._add("argument", "is a container that the function also reaches itself", Source())
        for where in self._forked.values():
            self._add("side-stream", "a stream that is not joined", where)
        if self._leaves_modes:
            self._add("python-state", MODES_LEFT, Source())
        if self.report.verdict != "eager":
            try:
                numbers.one_shots.check(numbers.one_shots)
            except CaptureError as error:
                self._add("python-state", str(error), Source())
        return False

    def _learns_classes(self, run: _Run, opaque: Sequence[object]) -> bool:
        """Whether the run has changed objects that can be taken apart, as a graph takes them."""
        paths = [c.path for c, _ in run.before.changed_items() or ()]
        changed = [item for n, item in enumerate(opaque) if any(_is_in(path, n) for path in paths)]
        known = self._objects.classes
        return self._objects.take_apart(changed) and self._objects.classes != known

    def _take(self, given: list[torch.Tensor]) -> None:
        """Let further runs be given these tensors."""
        self.inputs = self.world.wrap(given)
        self._begin()

    def _begin(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the next run, made for it; what is stored in them will be seen."""
        arguments: tuple[tuple[Any, ...], dict[str, Any]] = builder(self._spec, self.inputs)()
        met = Arguments(self._objects.classes)
        flatten(arguments, met)
        self._given.begin(parts_of_arguments(self._spec, arguments), met.containers())
        self._held = Held(arguments[0], arguments[1], self._spec)
        self._counted = self._held.count(self._objects.counters)
        for (_, name), item, _ in self._counted:
            self._given.count(item, name)
        return arguments

    def _call(self) -> Any:
        self._arguments = args, kwargs = self._begin()
        return self._fn(*args, **kwargs)

    def _suitable(self, args: Any, kwargs: Any) -> tuple[list[torch.Tensor], Any] | None:
        """The tensors among the arguments and their structure; ``None``: no graph takes them."""
        try:
            given, spec = flatten((args, kwargs), Arguments(self._objects.classes))
            builder(spec, given)  # as a graph will
        except (ArgumentError, AttributeError, RecursionError, TypeError) as error:
            self._add("argument", str(error), Source())
            return None
        for reason in filter(None, map(unsuitable, given)):
            self._add("argument", reason, Source())
        return None if self.report.hazards else (given, spec)

    def _run(self, varying: set[int], there: Sequence[object] = ()) -> _Run | None:
        """Run with a report of its own; ``None`` if it does not come to its end.

        Once, or until it is known which numbers among the arguments are only counted. ``there``:
        the objects of which the result of the first run was made.
        """
        while True:
            run = self._run_once(varying, there)
            places = {
                place for place, item, counted in self._counted if is_used(place, item, counted)
            }
            numbers = self._held.numbers()
            places |= {place for place, item in numbers.items() if item in self._given}
            if not self._objects.learn_counters(places):
                return run

    def _run_once(self, varying: set[int], there: Sequence[object]) -> _Run | None:
        self._again()
        before = PythonState(self._roots)
        recorder = self._recorder = _Recorder(self, varying)
        reads = self._new_reads()
        modes = conditions(self._fn)
        self._is_running = True
        try:
            with (
                side_effects(self._effect),
                refused(),
                pretended(),
                recorder.watching(),
                intercept(builtins, "__import__", reads.importing),
                reads.recording(),
            ):
                result = self._call()
        except DeviceError:
            raise
        except Unexpected:
            return None  # the rest is not checked
        except BaseException as error:
            if not is_raised_by_code(error):
                raise
            self._raised(error)
            return None
        finally:
            self._is_running = False
            self.report.operations = recorder.recording.operations
        written = {key for key, _ in recorder.recording.writes}
        self._given.take_out(reads.places)
        self._look_at_arguments(written, there)
        now = conditions(self._fn)
        self._leaves_modes |= [value for _, _, value in modes] != [value for _, _, value in now]
        reads.settle()
        looked_at = self._look_at(result, there)
        leaves, spec, objects = looked_at
        objects += self._met
        return _Run(before, recorder.recording, written, leaves, spec, objects, reads, self._left)

    def _raised(self, error: BaseException) -> None:
        """Report what the function raised."""
        if isinstance(error, CaptureError):
            rule = error.rule if error.rule in RULES else "side-effect"
            where = Source(error.file, error.line) if error.file else users_line_of(error)
            # Of a collective: one at which no graph can be cut.
            effect = "eager" if rule == "collective" else RULES[rule].effect
            if self._recorder is None or not self._recorder.quiet:
                self.hazard(rule, error.operation or str(error), where, False, effect)
        elif "process group has not been initialized" in one_line(error):
            self._add("collective", one_line(error), users_line_of(error))
        elif _NO_ACCELERATOR in one_line(error):
            raise DeviceError(
                f"check({self._name}): autograd of a CPU build of torch does not run on the "
                "simulated device. Check it with a CUDA or ROCm build."
            ) from error
        else:
            self._add("raises", one_line(error), users_line_of(error))

    def _changes(
        self, run: _Run, there: Sequence[object], numbers: HostState, stateful: Found
    ) -> tuple[dict[str, tuple[str, str]], LineFinder]:
        """Names of what the run has changed, each with its rule and a reason; and the lines."""
        before, reads = run.before, run.reads
        slots = _slots(run)
        slots |= dict.fromkeys(before.changes() - slots.keys())
        # What the walk of `before` does not find. It is put back at once.
        others = [place for place in reads.places.values() if not place.holds()]
        names, more = reads.put_back(before)
        slots |= dict.fromkeys(names) | {slot.path: slot for slot in more}
        before.narrow(slots)
        drawn = numbers.moved()
        self._written = [slot.identity for slot in slots.values() if slot is not None]
        self._written += [place.identity for place in others]

        def rewind() -> None:
            before.restore()
            numbers.rewind()
            for place in others:
                place.put_back()

        def changed() -> Iterator[str]:
            yield from (*before.changes(), *now.moved())
            for place in others:
                yield from place.changes()
            for change, _ in self._held.changes(self._objects.counters):
                yield from written_as(change, is_lifted=False)

        draws = bool(drawn) or any(h.rule == "random" for h in self.report.hazards)
        known = {name: slot for name, slot in slots.items() if slot is not None}
        now, finder = numbers, LineFinder(changed)
        if not known:  # or `written` sees it: what was read is there no more
            for place in (place for place in others if not place.holds()):
                slots |= dict.fromkeys(place.changes())
                if place.where[0]:
                    finder.found |= dict.fromkeys(place.changes(), Source(*place.where))
        found = self._rules(run, known, there, rewind, draws) if known else {}
        found |= {name: ("python-state", "") for name in slots.keys() - found.keys()}
        found |= {name: (rule, "") for name, rule in self._stored.items()}
        for name, is_random in drawn.items():
            found[name] = ("python-random" if is_random else "python-state", "")
        if found or any(h.rule == "result" for h in self.report.hazards):
            rewind()
            now = self._numbers(stateful)  # what cannot be put back is elsewhere
            # If it raises this time, the lines up to there are found.
            with suppress(Exception, Unexpected), self._unreported(), finder.looking():
                self._call()
            rewind()
        return found, finder

    @staticmethod
    def _numbers(found: Found) -> HostState:
        return HostState(EmulatedDevice(), 0, found)

    def _new_reads(self) -> Reads:
        """Remembers what a run reads in Python, and what it asks of its arguments."""
        return Reads(self._roots, self.inputs, self._given)

    def _rules(
        self,
        run: _Run,
        slots: dict[str, Slot],
        there: Sequence[object],
        rewind: Callable[[], None],
        draws: bool,
    ) -> dict[str, tuple[str, str]]:
        """What becomes of these places: their rules, and why graphed() does not store them."""
        call = Call(
            self._call,
            rewind,
            self.inputs,
            self._given,
            lambda: self._held.ways,
            there,
            self._new_reads,
            self._unreported,
            run.written,
            None if draws or run.written else run.leaves,
        )
        found = written(call, list(slots.values()))
        self._expected = found.result
        return {name: (found.rules[slot.identity], found.reason) for name, slot in slots.items()}

    @contextmanager
    def _unreported(self) -> Iterator[None]:
        """Run again inside; hazards of this run are known already."""
        report, self.report = self.report, CheckReport(self._name)
        try:
            with side_effects(self._effect), refused(), pretended():
                yield
        finally:
            self.report = report

    def _compare(self, first: _Run, last: _Run, returned: Source) -> None:
        """Report results that no graph gives, at the line that ``returned`` them."""
        of_result = [hazard for hazard in self.report.hazards if hazard.rule == "result"]
        for hazard in of_result:
            hazard.file, hazard.line, hazard.source = returned.file, returned.line, returned.text
        if first.left != last.left:
            self._add("argument", "what it stores there differs between calls", Source())
        expected = self._expected or first.spec
        if last.spec != expected and not of_result and not last.recording.breaks():
            self._add("result", "a Python value that differs between calls", Source())
        there = set(map(id, first.leaves)).difference(map(id, self.inputs))
        if any(isinstance(t, torch.nn.Parameter) and id(t) not in there for t in last.leaves):
            self._add("result", f"holds {MADE_PARAMETER}", Source())
        if not any(isinstance(t, SimulatedTensor) for t in (*self.inputs, *last.leaves)):
            self._add("argument", "no tensor among arguments and results is on cuda", Source())

    def _look_at_arguments(self, written: set[int], there: Sequence[object]) -> None:
        self._given.stores |= self._held.has_changed()
        try:
            self._stored = self._stored_in_arguments(there)
        except (ArgumentError, CaptureError) as error:
            self._add("argument", f"{CHANGES.partition(': ')[2]}: {error}", Source())
        if any(cls is other for cls in self._given.as_itself for other in self._objects.classes):
            self._add("argument", "the function asks which object it is given", Source())
        if self._given.refusal:
            self._add("argument", self._given.refusal, Source())
        if any(_own_attributes(tensor) for tensor in self.inputs):
            self._add("argument", "the function sets an attribute of a tensor", Source())
        given = [tensor for tensor in self.inputs if storage_key(tensor) in written]
        if given and (shares_memory(self.inputs) or any(0 in t.stride() for t in given)):
            self._add("argument", SHARED, Source())

    def _stored_in_arguments(self, there: Sequence[object]) -> dict[str, str]:
        """Names of the places in the arguments that the last run has written, and their rules.

        Raises:
            ArgumentError: a replay cannot store that.
            CaptureError: the same.
        """
        found: dict[str, str] = {}
        objects, stored = Objects(there), []
        self._left, self._met = [], []
        objects.inputs_are(self.inputs, self._held.ways)
        for change, values in self._held.changes(self._objects.counters):
            names = dict.fromkeys(written_as(change, is_lifted=False), "stored-value")
            for value, name in zip(
                reversed(values), [*reversed(names)] * len(values), strict=False
            ):
                if type(value) is Advance:
                    names[name] = "stored-counter"
                    continue
                tensors, spec = flatten(value, objects)
                stored += tensors
                self._left.append((change, spec))
                if tensors or any(isinstance(c.value, Given) for c in constants(spec)):
                    names[name] = "stored-tensor"
            found |= names
        if any(holds_way(spec) for _, spec in self._left):  # one may hold itself by now
            flatten(self._arguments, Arguments(self._objects.classes))
        require_storable([], stored, self.inputs, 0)
        self._met = objects.met()
        return found

    def _look_at(
        self, result: Any, there: Sequence[object]
    ) -> tuple[list[torch.Tensor], Any, list[object]]:
        """The tensors of a result, its structure, and the objects of which it is made."""
        objects = Objects()
        try:
            of_graph = Objects(there)
            of_graph.inputs_are((), self._held.ways)
            _, by_graph = flatten(result, of_graph)
            leaves, spec = flatten(result, objects)
            builder(spec, leaves)  # as a graph will
        except ArgumentError as error:
            self._add("result", str(error), Source())
            return [], None, []
        for leaf in leaves:
            reason = unsuitable(leaf, (torch.Tensor, torch.nn.Parameter, SimulatedTensor))
            if reason is not None:
                self._add("result", reason, Source())
            if _own_attributes(leaf):
                self._add("result", "has attributes of its own", Source())
            if leaf.requires_grad:
                self._add("autograd", "the result requires grad", Source())
        for const in constants(by_graph):
            if not (const.is_value or isinstance(const.value, Given)):
                self._add("result", f"holds a {describe(const.value)}", Source())
        return leaves, spec, objects.met()

    def _add(self, rule: str, what: str, where: Source) -> None:
        if self._recorder is None or not self._recorder.quiet:
            self.hazard(rule, what, where, False, RULES[rule].effect)

    def hazard(
        self,
        rule: str,
        what: str,
        where: Source,
        tainted: bool,
        effect: Effect,
        anew: bool = False,
    ) -> None:
        """Report it; ``anew``: the host acts on a number that is new in each call."""
        entry, place = RULES[rule], (rule, where.file, where.line, effect)
        for known in self.report.hazards:
            # One line may write a cache in each layer.
            same = known.what == what or rule.endswith("-write")
            if same and (known.rule, known.file, known.line, known.effect) == place:
                known.count += 1
                known.tainted |= tainted
                known.decides_anew |= anew
                return
        self.report.hazards.append(
            Hazard(
                rule,
                _SEVERITIES[effect],
                effect,
                what,
                where.file,
                where.line,
                where.text,
                1,
                tainted,
                entry.why,
                remedy(rule, what, where.text) or entry.remedy,
                anew,
            )
        )

    def _observe(self, kind: str, what: str, detail: Any) -> None:
        if kind == "fork":
            self._forked[detail[0]] = users_line()
        elif kind == "join":
            self._forked.pop(detail[1], None)
        elif kind == "assumed":
            if what not in self.report.assumed:
                self.report.assumed.append(what)
        elif kind == "hidden-sync":
            if self._recorder is not None and not self._recorder.quiet:
                self.hazard(kind, what, users_line(), True, RULES[kind].tainted)
        # Work on the default stream is reported where it runs, and what we put back is not.
        elif kind in RULES and kind != "default-stream" and self._is_running:
            self._add(kind, what, users_line())

    def _effect(self, rule: str, what: str) -> bool:
        """Report an effect outside of torch, and prevent it."""
        self._add(rule, what, users_line())
        return True


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    """Another object for a tensor, on the same memory."""
    is_plain = type(tensor) is torch.Tensor and not tensor.requires_grad
    return tensor.detach() if is_plain else tensor


def _slots(run: _Run) -> dict[str, Slot | None]:
    """Names of what the run has bound in Python, with the places that graphed() stores again.

    ``None``: it stores no such thing.
    """
    found: dict[str, Slot | None] = {}
    for container, key in run.before.changed_items() or ():
        slots = run.reads.slots([[(container, key)]])
        found[container.name(key)] = slots[0] if slots else None
    return found


def _is_in(path: str, number: int) -> bool:
    """Whether a place is one of the argument of that number, which is compared by identity."""
    name = f"argument {number}"
    return path == name or path.startswith((f"{name}.", f"{name}["))


def _is_settling(run: _Run) -> bool:
    """Whether a place that is read holds tensors of another kind than before the run."""
    for container, key in run.before.changed_items() or ():
        for slot in run.reads.slots([[(container, key)]]):
            before, now = slot.value_before, slot.get()
            if slot.is_whole:
                before, now = container.held, container.read()
            if slot.is_read and not is_of_one_kind(before, now):
                return True
    return False


def _by_container(
    changed: dict[str, tuple[str, str]], finder: LineFinder
) -> dict[tuple[str, str, str, Source], list[str]]:
    """Places that the run has changed; items of one container that one line changes together."""
    found: dict[tuple[str, str, str, Source], list[str]] = {}
    for name, (rule, reason) in changed.items():
        container = name[: name.rindex("[")] if name.endswith("]") else f"{name} itself"
        where = finder.found.get(name, Source())
        found.setdefault((container, rule, reason, where), []).append(name)
    return {kind: sorted(names) for kind, names in found.items()}


def _watched(first: Reads, last: Reads, written: Collection[Any]) -> list[Watched]:
    """What a graph would watch, but for what is ``written``; the values are those of now."""
    found: dict[Watched, None] = {}
    for identity, place in last.places.items():
        if identity in written or place.path in written:
            continue
        if place.path.startswith(_OURS):
            continue
        value = _shown(first.places.get(identity, place))
        found[Watched(place.path, value, *place.where)] = None
    return list(found)


def _only_views(func: Any) -> bool:
    """Whether an operator gives the device no work."""
    return isinstance(func, OpOverload) and is_view(func)


def _own_attributes(tensor: torch.Tensor) -> list[str]:
    """Attributes that the program has set; marks of torch and of ours begin with an underscore."""
    return [name for name in vars(tensor) if name != "inside" and not name.startswith("_")]


def _shown(place: Place) -> str:
    """The plain value that it holds."""
    value = getattr(place, "value", None)
    if type(value) is int and value.bit_length() > 64:  # Python may refuse to write it
        return ""
    return reprlib.repr(value) if type(value) in (bool, int, float, str) else ""


class _Recorder(Recorder):
    """Reports hazards to ``check`` in the order of the run.

    Args:
        check: what runs the function.
        varying: storage keys of outside tensors that change from call to call.
    """

    def __init__(self, check: _Check, varying: set[int]) -> None:
        super().__init__(
            "cuda",
            check.inputs,
            UndoLog(),
            keep_values=False,
            off_stream=check.world.off_stream,
            names=check.names,
            varying=varying,
        )
        self._check = check

    def event(self, point: Point, func: Any, args: Any, kwargs: Any) -> Any:
        """Run the point, and report its effect."""
        result = super().event(point, func, args, kwargs)
        event, rule = self.recording.events[-1], RULES[point.rule]
        effect: Effect = "folds" if event.folds else rule.tainted
        anew = not event.folds and isinstance(result, (float, complex))
        self._check.hazard(rule.id, point.what, event.where, not event.folds, effect, anew)
        return result

    def function(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Report moves of tensors that were assumed to be on the device."""
        if not self.quiet and is_move(func, args, kwargs) and self._check.world.is_assumed(args[0]):
            what = f"Tensor.{func.__name__}() of a tensor from outside"
            self._check.hazard("host-constant", what, users_line(), False, "folds")
        return super().function(func, args, kwargs)

    def met(self, rule: str, what: str, tensors: Iterable[torch.Tensor] = ()) -> None:
        super().met(rule, what, tensors)
        if not self.quiet:
            self._check.hazard(rule, what, users_line(), False, RULES[rule].effect)

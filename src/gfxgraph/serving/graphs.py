"""The graphs of an engine: state, memory and replays of each size, and where its weights were."""

from __future__ import annotations

import functools
import logging
import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, ClassVar, Literal, cast

import torch

from ..bridge.enable import graph_checks
from ..device import PoolHandle, current_device
from ..errors import one_line
from ..graph.native import NativeGraph
from ..stats import log, tally
from .sampling import compare

__all__ = ["EngineGraphs", "Size", "release_unused", "sizes"]

State = Literal["captured", "failed", "eager", "waiting"]


@dataclass(frozen=True)
class Size:
    """One size of one runner.

    Attributes:
        engine: ``"SGLang"`` or ``"vLLM"``.
        runner: the class of the engine that holds the graphs.
        size: the engine's own key of it: fields that have a value.
        state: ``"captured"``; ``"failed"``: the capture raised, or a replay was wrong, and the size
            runs eagerly; ``"eager"``: it was released, and runs eagerly.
        bytes: what the capture added to the memory pool that the sizes share. 0 if it fitted into
            what was there.
        replays: how often its graph was replayed. ``None`` where the engine keeps graphs in a form
            that does not tell.
        reason: why it is not captured, else empty.
        compared: how many of its replays were compared with eager execution.
        not_compared: why they are not, else empty. Empty also where sampling is off.
    """

    engine: str
    runner: str
    size: str
    state: State
    bytes: int
    replays: int | None
    reason: str = ""
    compared: int = 0
    not_compared: str = ""


@dataclass
class _Record:
    state: State
    bytes: int = 0
    reason: str = ""
    counted: Callable[[], int | None] = lambda: 0
    release: Callable[[], None] | None = None
    capture: Callable[[], None] | None = None
    answers: int = 0
    compared: int = 0
    not_compared: str = ""
    weights: _Weights | None = None
    since: float = -math.inf  # at which step it was captured; those at start have no such step


class EngineGraphs:
    """The graphs of one object of an engine that holds graphs; it lives as long as that object.

    Args:
        engine: name of the engine.
        runner: what to call the owner.

    Attributes:
        compare_every: how often a replay of a size is compared with eager execution, beside its
            first; 0: never.
        wanted: the sizes that wait and that a batch has needed, in this order.
        steps: how many steps between which something may be done there were.
    """

    compare_every: ClassVar[int] = 0
    _all: ClassVar[weakref.WeakKeyDictionary[Any, EngineGraphs]] = weakref.WeakKeyDictionary()

    def __init__(self, engine: str, runner: str) -> None:
        self.engine, self.runner = engine, runner
        self.wanted: list[str] = []
        self.steps = 0
        self._records: dict[str, _Record] = {}
        self._model: weakref.ref[torch.nn.Module] | None = None

    @classmethod
    def of(cls, owner: Any, engine: str, runner: str) -> EngineGraphs:
        """Those of ``owner``, made where there are none."""
        found = cls._all.get(owner)
        if found is None:
            found = cls._all[owner] = cls(engine, runner)
            if stale_weights not in graph_checks:
                graph_checks.append(stale_weights)
        return found

    @classmethod
    def known(cls, owner: Any) -> EngineGraphs | None:
        """Those of ``owner``, if there are any."""
        return None if owner is None else cls._all.get(owner)

    @classmethod
    def all(cls) -> list[EngineGraphs]:
        """Those whose owner still lives."""
        return list(cls._all.values())

    def watch(self, model: object) -> None:
        """From now on, remember with each capture where the weights of ``model`` are."""
        if isinstance(model, torch.nn.Module):
            self._model = weakref.ref(model)

    @contextmanager
    def capturing(
        self,
        key: str,
        pool: Callable[[], Any],
        keep: Callable[[], bool],
        counted: Callable[[], int | None],
        release: Callable[[], None] | None,
        give_up: Callable[[], None],
    ) -> Iterator[None]:
        """The block captures the size ``key``. If the capture fails, the error ends here.

        An error from before the first capture began is the engine's own: its eager path has failed.
        Where no capture began, an engine that keeps a graph has replayed it: what is known of it
        holds.

        Args:
            key: the size; see :func:`label`.
            pool: gives the pool, or ``None`` while there is none.
            keep: whether the engine's eager path can answer this size.
            counted: gives the replays of its graph.
            release: drops its graph, and lets the engine run the size eagerly; ``None``: that must
                not be done.
            give_up: the same as ``release``, after a failure: there may be no graph, or a part of
                one.
        """
        begun, before = NativeGraph.begun, _pool_bytes(pool())
        try:
            yield
        except Exception as error:
            if NativeGraph.begun == begun or several_ranks() or not keep():
                raise
            give_up()
            self.fail(key, error)
        else:
            if NativeGraph.begun != begun or self.state(key) != "captured":
                self.add(key, _pool_bytes(pool()) - before, counted, release)

    def add(
        self,
        key: str,
        bytes: int,
        counted: Callable[[], int | None],
        release: Callable[[], None] | None,
    ) -> None:
        """The size ``key`` was captured."""
        weights = self._weights_now()
        self._put(key, _Record("captured", max(0, bytes), "", counted, release, weights=weights))
        log(logging.INFO, "size_captured", engine=self.engine, size=key, bytes=bytes)

    def fail(self, key: str, error: BaseException) -> None:
        """The capture of the size ``key`` failed; log it and count it, once a size."""
        reason = one_line(_first(error))
        self._put(key, _Record("failed", reason=reason))
        tally.fallback(f"{self.engine} {self.runner} {key}", f"its capture failed: {reason}")

    def state(self, key: str) -> State | None:
        """The state of the size ``key``; ``None``: nothing is known of it."""
        record = self._records.get(key)
        return None if record is None else record.state

    def has_graph(self, key: str) -> bool:
        """Whether the engine still has the graph of the size ``key``."""
        record = self._records.get(key)
        return record is not None and record.state == "captured" and record.counted() is not None

    def _put(self, key: str, record: _Record) -> None:
        self._records[key] = record
        if key in self.wanted:  # what it waited for is done
            self.wanted.remove(key)

    def _weights_now(self) -> _Weights | None:
        """Where the weights are now; those of another size if they were there then, too."""
        model = None if self._model is None else self._model()
        if model is None:
            return None
        now = _Weights(weakref.ref(model), _addresses(model))
        known = (record.weights for record in reversed(self._records.values()))
        return next((weights for weights in known if weights == now), now)

    def wait(self, key: str, capture: Callable[[], None]) -> None:
        """The size ``key`` runs eagerly until a batch has needed it.

        Args:
            key: the size; see :func:`label`.
            capture: captures it with the engine's own code, inside of :meth:`capturing`, and lets
                the engine choose it. If it raises, the engine runs the size eagerly.
        """
        self._put(key, _Record("waiting", reason="no batch has needed it", capture=capture))

    def want(self, key: str) -> None:
        """A batch needs the size ``key``: it is captured before the next step, if it waits."""
        record = self._records.get(key)
        if record is not None and record.capture is not None and key not in self.wanted:
            self.wanted.append(key)

    def capture_wanted(self) -> None:
        """Capture the size that was wanted first.

        No error of it ends the server, also none of the engine's eager runs, which at start end the
        start. What is no error, such as an interrupt, goes on to the caller.
        """
        key = self.wanted.pop(0)
        capture = self._records[key].capture
        assert capture is not None, key  # it waits, or it would not be wanted
        try:
            capture()
        except BaseException as error:
            self.fail(key, error)
            if not isinstance(error, Exception):
                raise
        else:
            self._records[key].since = self.steps

    def stop_waiting(self, why: str) -> int:
        """The sizes that wait are captured no more; how many those are."""
        self.wanted.clear()
        waiting = [record for record in self._records.values() if record.capture is not None]
        for record in waiting:
            record.reason, record.capture = why, None
        return len(waiting)

    def capture_at_start(self, why: str) -> None:
        """Say that sizes do not wait here, and why."""
        names = {"engine": self.engine, "runner": self.runner}
        log(logging.WARNING, "not_lazy", **names, because=why)

    def leave_out(self, key: str, why: str) -> None:
        """Do not compare the replays of the size ``key``, if there is a reason; log it once."""
        record = self._records.get(key)
        if why and record and record.state == "captured" and not record.not_compared:
            told = {r.not_compared for r in self._records.values()}
            record.not_compared = why
            if why not in told:
                names = {"engine": self.engine, "runner": self.runner, "size": key}
                log(logging.WARNING, "not_compared", **names, because=why)

    def answer(
        self, key: str, replay: Callable[[], Any], run: Callable[[], Any], rows: int | None
    ) -> Any:
        """The result of a step of the size ``key``, of which a sample is compared.

        A size whose replay differs is counted, logged and released, and the step gets the result
        of eager execution.

        Args:
            key: the size; see :func:`label`.
            replay: replays its graph.
            run: runs eagerly what was captured, on the same inputs.
            rows: how many rows of the result are not padding; ``None``: all.
        """
        record = self._records.get(key)
        if record is None or record.state != "captured" or record.not_compared:
            return replay()
        record.answers += 1
        if record.answers > 1 and record.answers % self.compare_every:
            return replay()
        found = compare(replay, run, rows)
        if found.impossible:
            self.leave_out(key, found.impossible)
            return found.result
        record.compared += 1
        if found.difference is not None and record.release is not None:
            record.release()
            reason = f"a replay differed from eager execution: {found.difference}"
            self._put(key, _Record("failed", reason=reason, compared=record.compared))
            tally.add("validation_failures")
            tally.fallback(f"{self.engine} {self.runner} {key}", reason)
        return found.result

    def sizes(self) -> list[Size]:
        """The sizes now."""
        return [
            Size(
                *(self.engine, self.runner, key, r.state, r.bytes, r.counted(), r.reason),
                *(r.compared, r.not_compared),
            )
            for key, r in self._records.items()
        ]

    def release_unused(self, grace: int = 0) -> list[Size]:
        """Release the sizes that were never replayed; those are returned.

        Args:
            grace: leave those that were captured between steps, fewer than so many steps ago.
        """
        gone = []
        for key, record in list(self._records.items()):
            if self.steps - record.since < grace:
                continue
            if record.state == "captured" and record.release and record.counted() == 0:
                record.release()
                self._put(key, _Record("eager", reason="it was released, never replayed"))
                gone.append(key)
        return [size for size in self.sizes() if size.size in gone]

    def stale(self) -> list[str]:
        """A sentence if weights are elsewhere than when a graph was captured."""
        captured = [r.weights for r in self._records.values() if r.state == "captured"]
        # Most sizes share theirs.
        moved = {id(weights): weights.moved() for weights in captured if weights is not None}
        names = list(dict.fromkeys(name for several in moved.values() for name in several))
        if not names:
            return []
        old = sum(bool(moved.get(id(weights))) for weights in captured)
        some = ", ".join(names[:3]) + ", ..." * (len(names) > 3)
        return [
            f"{len(names)} weight(s) of {self.engine} ({self.runner}) are elsewhere than when "
            f"graphs of {old} of {len(captured)} size(s) were captured ({some}), which read the "
            "old memory: load weights in place, or capture again"
        ]


@dataclass(frozen=True)
class _Weights:
    """Where the parameters and buffers of a module were."""

    model: weakref.ref[torch.nn.Module]
    seen: dict[str, int]

    def moved(self) -> list[str]:
        model = self.model()
        if model is None:
            return []
        now = _addresses(model)
        return [name for name, address in self.seen.items() if now.get(name) != address]


def _addresses(model: torch.nn.Module) -> dict[str, int]:
    found = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        try:
            found[name] = tensor.untyped_storage().data_ptr()
        except (RuntimeError, NotImplementedError):  # a subclass without memory of its own
            continue
    return found


def stale_weights() -> list[str]:
    """For ``health_check``: a sentence for each engine's graphs whose weights are elsewhere."""
    return [sentence for graphs in EngineGraphs.all() for sentence in graphs.stale()]


def sizes() -> list[Size]:
    """The sizes of the graphs of vLLM and SGLang in this process, while the plugin is active.

    Empty in processes that hold no graphs: those of the API server and the tokenizer.
    """
    return [size for graphs in EngineGraphs.all() for size in graphs.sizes()]


def release_unused() -> list[Size]:
    """Drop the graphs of sizes that were never replayed; those sizes run eagerly from now on.

    The sizes of an engine share one memory pool, which keeps its memory as long as one graph is
    left. So this frees what the driver keeps for each graph, and lets later captures use the memory
    of the pool; it does not make the pool smaller. Call it in the process that holds the graphs
    and between two steps of the engine, such as through ``collective_rpc`` of vLLM.

    Returns:
        The sizes that were released.
    """
    return [size for graphs in EngineGraphs.all() for size in graphs.release_unused()]


@functools.lru_cache(maxsize=None, typed=True)
def label(key: Any) -> str:
    """An engine's key of a size, without what has no value."""
    fields = asdict(key) if is_dataclass(key) and not isinstance(key, type) else vars(key)
    return " ".join(f"{name}={getattr(v, 'name', v)}" for name, v in fields.items() if v)


def replays_of(graph: object) -> int | None:
    """How often ``graph`` was replayed: one of ours, or what holds several as ``_segments``."""
    first = next(iter(getattr(graph, "_segments", ())), graph)
    return first.counter.total() if isinstance(first, NativeGraph) else None


def several_ranks() -> bool:
    """Whether other ranks would go on with a graph that this one has not."""
    distributed = torch.distributed
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )


def _pool_bytes(pool: Any) -> int:
    handle = getattr(pool, "id", pool)
    return 0 if handle is None else current_device().pool_bytes(cast(PoolHandle, handle))


def _first(error: BaseException) -> BaseException:
    """The first error of a chain: ending a capture may raise another one after it."""
    while error.__cause__ or (error.__context__ and not error.__suppress_context__):
        error = cast(BaseException, error.__cause__ or error.__context__)
    return error

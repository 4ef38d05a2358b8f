"""Several functions by name, each answered from its own graphs, all in one memory pool."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch

from ..errors import ArgumentError, CaptureError
from ..graph.compare import Tolerance
from ..graph.locks import turn_to_capture
from ..graph.pool import GraphPool
from ..interpose.source import leave_out_ours
from ..tables import Sections
from .dispatch import Dispatcher, Exact, reset_with
from .options import Branching, Options
from .replay import NO_MATCH
from .stats import GraphedStats
from .suitable import check_progress, describe, inference

__all__ = ["ConditionalGraph"]


class ConditionalGraph:
    """Named branches, of which each call runs the one that the host picks, from its graph.

    The branches need not take the same arguments, nor give results of the same structure. Their
    graphs share one memory pool: what one computes on the way lies where another does the same.
    Where no argument requires grad, branches run under ``torch.no_grad()``, from a graph or
    eagerly. Where one does, they run eagerly and autograd works.

    >>> graph = gfxgraph.ConditionalGraph().add_branch("draft", draft).add_branch("full", model)
    >>> graph.capture(x)
    >>> y = graph.run("draft", x)

    Args:
        warmup: eager runs before a capture. At least 1, default 2.
        verify: compare the first replay of each graph with eager execution, as for
            :func:`~gfxgraph.graphed`. Default ``True``.
        fallback: ``"eager"`` (default), or ``"raise"`` the reason where no graph can be made.
        branching: what becomes of a branch whose own course depends on data, as for
            :func:`~gfxgraph.graphed`. Default ``"auto"``.

    Raises:
        ArgumentError: an option holds what it does not take.
    """

    def __init__(
        self,
        *,
        warmup: int = 2,
        verify: Tolerance = True,
        fallback: Literal["eager", "raise"] = "eager",
        branching: Branching = "auto",
    ) -> None:
        options = Options(
            warmup=warmup,
            verify=verify,
            fallback=fallback,
            branching=branching,
            given_to="ConditionalGraph",
        )
        self.__setstate__((options, {}))

    def __setstate__(self, state: tuple[Options, dict[str, Callable[..., Any]]]) -> None:
        self._options, functions = state
        self._graph_pools: dict[int, GraphPool] = {}
        self._branches: dict[str, tuple[Callable[..., Any], Dispatcher]] = {}
        #: What kept capture() from capturing a branch.
        self._reasons: dict[str, str] = {}
        self._captured = False
        for name, fn in functions.items():
            self.add_branch(name, fn)

    def __getstate__(self) -> tuple[Options, dict[str, Callable[..., Any]]]:
        # A copy has the functions, and makes graphs of its own.
        return self._options, {name: fn for name, (fn, _) in self._branches.items()}

    def add_branch(self, name: str, fn: Callable[..., Any]) -> ConditionalGraph:
        """Add a branch, before :meth:`capture`.

        Args:
            name: what :meth:`run` calls it.
            fn: the function, ``torch.nn.Module`` or bound method.

        Returns:
            This object, so that calls can be chained.

        Raises:
            ArgumentError: the name is taken, empty or no string; ``fn`` is not callable or is a
                class; :meth:`capture` has been called.
        """
        if not isinstance(name, str) or not name:
            raise ArgumentError(f"add_branch({name!r}): expected a name, a string not empty.")
        if not callable(fn) or isinstance(fn, type):
            raise ArgumentError(
                f"add_branch({name!r}): expected a function, a module or a bound method, "
                f"not {describe(fn)}."
            )
        if self._captured:
            raise ArgumentError(
                f"add_branch({name!r}): capture() has been called. Add all branches before it, or "
                "reset() first."
            )
        if name in self._branches:
            raise ArgumentError(
                f"add_branch({name!r}): there is a branch of this name. Expected another than "
                f"{self._known()}."
            )
        strategy = Exact(shares_inputs=True)
        dispatcher = Dispatcher(name, self._options, strategy, graph_pools=self._graph_pools)
        reset_with(self, dispatcher)
        self._branches[name] = fn, dispatcher
        return self

    def capture(
        self,
        /,
        *args: Any,
        progress: Callable[[Sequence[str]], Iterable[str]] = iter,
        **kwargs: Any,
    ) -> None:
        """Capture all branches for calls with arguments like these now, not at their first run.

        What the branches write or draw meanwhile is taken back. One that cannot be captured is in
        :attr:`failed_branches`; so is one that does not take these arguments, until its first run.
        Waits for another thread that is capturing.

        Args:
            *args: arguments as :meth:`run` will pass them to the branches.
            progress: wraps the list of names, such as ``rich.progress.track``.
            **kwargs: keyword arguments.

        Raises:
            ArgumentError: there are no branches, or it was called before.
            CaptureError: with ``fallback="raise"``, why a branch cannot be captured; or another
                thread has been capturing for a minute.
        """
        check_progress(progress)
        self._require_branches("capture()")
        if self._captured:
            raise ArgumentError(
                "capture() has been called. Calls with other arguments are captured at their "
                "first run(); to capture all anew, reset() first."
            )
        with turn_to_capture(), inference(args, kwargs):
            for name in progress(self.branches):
                fn, dispatcher = self._branches[name]
                error = dispatcher.prepare(fn, args, kwargs)
                if error is None:
                    continue
                self._reasons[name] = str(error)
                try:
                    if self._options.fallback == "raise":
                        raise CaptureError(f"{name}: {error}") from error
                finally:
                    error = None  # its traceback holds this frame, and the tensors of the capture
        self._captured = True

    def run(self, which: str | int | torch.Tensor, /, *args: Any, **kwargs: Any) -> Any:
        """Call a branch, from a graph if there is one for these arguments.

        The first call with arguments of a new kind runs the branch as it is, and captures it where
        :meth:`capture` has not. Where no graph can be made, the call runs eagerly: logged once for
        each reason and counted in :meth:`stats`.

        Args:
            which: the name of the branch; its position, from 0, in the order of
                :meth:`add_branch`; or that position in a tensor of one element, integer or bool.
                To read a tensor that lives on the device, the host waits for the device.
            *args: arguments of the branch.
            **kwargs: keyword arguments.

        Returns:
            What the branch gives, in tensors that no later call overwrites; a cache that it returns
            is the cache itself, as in eager execution.

        Raises:
            ArgumentError: there is no such branch, or ``which`` is none of these.
            CaptureError: with ``fallback="raise"``, why there is no graph.
        """
        try:
            try:
                found = self._branches[which]  # type: ignore[index]  # a name, as a rule
            except (KeyError, TypeError):
                found = None
            fn, dispatcher = self._branches[self._name(which)] if found is None else found
            result = dispatcher.fast_path(fn, args, kwargs)
            return dispatcher.without_grad(fn, args, kwargs) if result is NO_MATCH else result
        except Exception as error:
            leave_out_ours(error)
            raise

    @property
    def branches(self) -> tuple[str, ...]:
        """The names, in the order of :meth:`add_branch`."""
        return tuple(self._branches)

    @property
    def failed_branches(self) -> dict[str, str]:
        """Those that run eagerly since they could not be captured: name -> the newest reason.

        A branch that gets a graph, such as for other arguments, is no longer among them.
        """
        failed = {}
        for name, stats in self.stats().items():
            reason = next(reversed(stats.refused.values()), self._reasons.get(name))
            if reason is not None and not stats.graphs:
                failed[name] = reason
        return failed

    def function_of(self, dispatcher: Dispatcher) -> Callable[..., Any] | None:
        """The branch that a dispatcher answers, if one does."""
        branches = self._branches.values()
        return next((fn for fn, known in branches if known is dispatcher), None)

    def stats(self) -> dict[str, GraphedStats]:
        """The statistics of each branch since it was added or reset, by name."""
        branches = self._branches.items()
        return Sections({name: dispatcher.stats() for name, (_, dispatcher) in branches})

    def reset(self) -> None:
        """Release all graphs and forget all reasons and counts; the branches stay.

        From then on branches can be added, and :meth:`capture` be called again.
        """
        for _, dispatcher in self._branches.values():
            dispatcher.reset()
        self._reasons.clear()
        self._captured = False

    def _name(self, which: Any) -> str:
        """The name of the branch at a position."""
        self._require_branches("run()")
        if isinstance(which, str):
            raise ArgumentError(
                f"run({which!r}): there is no such branch; expected one of {self._known()}."
            )
        position = _position(which)
        if not 0 <= position < len(self._branches):
            raise ArgumentError(
                f"run({position}): there is no such position; expected one from 0 to "
                f"{len(self._branches) - 1}, in the order {self._known()}."
            )
        return self.branches[position]

    def _known(self) -> str:
        return ", ".join(map(repr, self._branches))

    def _require_branches(self, what: str) -> None:
        if not self._branches:
            raise ArgumentError(f"{what}: there are no branches. Call add_branch(name, fn) first.")


def _position(which: Any) -> int:
    """The position that a number or an index tensor holds."""
    if not isinstance(which, torch.Tensor):
        try:
            return operator.index(which)
        except TypeError:
            raise ArgumentError(
                f"run({describe(which)}): expected the name of a branch, its position or an index "
                "tensor."
            ) from None
    if which.numel() != 1:
        raise ArgumentError(
            f"run(tensor of shape {tuple(which.shape)}): expected an index tensor of one element. "
            "Pick one, such as which[0]."
        )
    if which.is_meta:
        raise ArgumentError(
            "run(tensor on the meta device): it has no value. Expected an index tensor with data, "
            "or the name of a branch."
        )
    if which.is_floating_point() or which.is_complex():
        raise ArgumentError(
            f"run(tensor of {which.dtype}): expected an index tensor of integers or bool. Compare "
            "it or round it first, such as which.long()."
        )
    return int(which.item())

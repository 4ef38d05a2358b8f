"""``ShapeBucketPool``: calls of any size, answered from graphs of a few sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...errors import ArgumentError
from ...graph.compare import Tolerance
from ...interpose.dynamo import opaque
from ...interpose.source import leave_out_ours, name_of
from ..dispatch import reset_with
from ..key import Call
from ..options import Options
from ..replay import NO_MATCH
from ..suitable import check_progress, describe, inference
from .padded import Padded, new_dispatcher
from .padding import Padding
from .sizes import Buckets, Dims, Larger, OutDims, Rows
from .stats import PoolStats

__all__ = ["PoolStats", "ShapeBucketPool"]


class ShapeBucketPool:
    """A function for any batch size (and length), answered from graphs of a few sizes.

    A call is padded to the smallest bucket that fits, replayed, and cut to what was asked for. The
    first call of a bucket runs the function as it is; then the bucket is captured, and a padded
    run compared with one of another size. Before the first graph is used it is judged whether
    padding can reach what is kept: the function runs on inputs made for that, of several sizes and
    both signs, alone and among other rows, and one run is followed operation by operation. The
    first call of each size is compared with eager execution. Where rows influence each other (batch
    norm in training, attention without a mask), where the function returns its size, writes to an
    argument or draws random numbers, and where nobody can say, calls run eagerly, and ``stats()``
    says why and where.

    Bool arguments, and those with ``mask`` in their name, are masks: what they are padded with is
    taken to be the choice of ``pad``. Data of the padding may reach what is kept only where a mask
    that is padded with a number keeps it from counting.

    Where no argument requires grad, calls run under ``torch.no_grad()``, from a graph or eagerly.
    Where one does, they run eagerly and autograd works.

    All graphs share one memory pool and the memory of their static inputs; results are tensors of
    their own. ``graphed(fn, buckets=...)`` is the same as a decorator, also for methods.

    Args:
        model_fn: the function or module.
        buckets: sizes in ascending order; or a mapping from the name of a dimension to its sizes.
        dims: which dimensions are dynamic: argument name -> dimension -> name of the size. Default:
            the first dimension of each tensor that has one is ``"batch"``.
        pad: what to pad with, see :data:`Padding`; or a mapping from argument names to that.
            Default ``"auto"``.
        larger: what becomes of a call above the largest bucket: ``"eager"`` (default), ``"split"``:
            in pieces of the largest bucket, along the one dimension that is too large, or
            ``"error"``.
        out_dims: which dimensions of the result carry a size: for each of its tensors, in order,
            dimension -> name. Default: seen by comparing two sizes.
        rows: ``"judge"`` (default), or ``"independent"``: padding is known to leave alone what is
            kept, such as zeros that are added up, or random numbers may be others than in eager
            execution. Then only one padded run is compared with one of another size.
        verify: tolerance of the comparisons, as for :func:`~gfxgraph.graphed`; ``False``: none, and
            nothing is judged.
        warmup: eager runs before the first capture, beside those that compare. Default 2. Where
            the function only computes (writes nothing, draws nothing, keeps no state), further
            buckets take one.

    Raises:
        ArgumentError: an option holds what it does not take.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        buckets: Sequence[int] | Mapping[str, Sequence[int]],
        *,
        dims: Dims | None = None,
        pad: Padding | Mapping[str, Padding] = "auto",
        larger: Larger = "eager",
        out_dims: OutDims | None = None,
        rows: Rows = "judge",
        verify: Tolerance = True,
        warmup: int = 2,
    ) -> None:
        if not callable(model_fn) or isinstance(model_fn, type):
            raise ArgumentError(
                f"model_fn is {describe(model_fn)}: expected a function, a module or a method."
            )
        options = Options(
            warmup=warmup,
            verify=verify,
            buckets=Buckets(buckets, dims, pad, larger, out_dims, rows).of_arguments(model_fn),
            given_to="ShapeBucketPool",
        )
        self.__setstate__((model_fn, options))

    def __setstate__(self, state: tuple[Callable[..., Any], Options]) -> None:
        self.model_fn, self._options = state
        self._dispatcher = new_dispatcher(name_of(self.model_fn), self._options)
        reset_with(self, self._dispatcher)

    def __getstate__(self) -> tuple[Callable[..., Any], Options]:
        # A copy has the function, and makes graphs of its own.
        return self.model_fn, self._options

    @property
    def _padded(self) -> Padded:
        strategy = self._dispatcher.strategy
        assert isinstance(strategy, Padded)
        return strategy

    @property
    def buckets(self) -> dict[str, list[int]]:
        """The sizes, by the name of the dimension."""
        return {name: list(sizes) for name, sizes in self._padded.buckets.sizes.items()}

    @opaque
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Answer a call of any size.

        Raises:
            ArgumentError: the arguments have no dynamic dimension, disagree on its size, are too
                large where ``larger="error"``, or of another dtype than :meth:`capture` was called
                with.
        """
        dispatcher, fn = self._dispatcher, self.model_fn
        try:
            result = dispatcher.fast_path(fn, args, kwargs)
            return dispatcher.without_grad(fn, args, kwargs) if result is NO_MATCH else result
        except Exception as error:
            leave_out_ours(error)
            raise

    def capture(
        self,
        /,
        *args: Any,
        progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
        **kwargs: Any,
    ) -> None:
        """Capture all buckets now, the largest first, so that the smaller share its memory.

        What the function writes, draws or changes meanwhile is taken back. A bucket that cannot be
        captured, or for which ``GFXGRAPH_VRAM_CAP`` leaves no room, runs eagerly: ``stats()`` says
        why. Called again, it tries those for which there was no room.

        Args:
            *args: arguments of any size; they are cut and padded to each bucket.
            progress: wraps the list of buckets, such as ``rich.progress.track``.
            **kwargs: keyword arguments.

        Raises:
            ArgumentError: see :meth:`__call__`; also if a size is 0.
            CaptureError: called inside a capture, or under a dispatch mode; or another thread has
                been capturing for a minute.
        """
        check_progress(progress)
        with inference(args, kwargs):
            call = Call(self.model_fn, args, kwargs)
            self._padded.prepare_all(self._dispatcher, call, progress)

    def suggest(self, count: int, dim: str | None = None) -> list[int]:
        """Buckets that would have padded least for the calls so far.

        Args:
            count: how many.
            dim: the name of the dimension; may be left out if there is one.

        Raises:
            ArgumentError: no call came yet, or there is no such dimension.
        """
        return self._padded.suggest(count, dim)

    def stats(self) -> PoolStats:
        """The counts, graphs and sizes since this pool was made or reset."""
        stats = self._dispatcher.stats()
        assert isinstance(stats, PoolStats)
        return stats

    def reset(self) -> None:
        """Release all graphs and forget all reasons; the next calls start anew."""
        self._dispatcher.reset()

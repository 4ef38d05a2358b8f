"""``BridgedCUDAGraph``: a graph that is captured by hand, or in one ``with`` block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

from ..call.buckets.padding import Padding
from ..call.buckets.pool import ShapeBucketPool
from ..call.buckets.sizes import Dims
from ..device import PoolHandle
from ..errors import ArgumentError
from ..graph.compare import Tolerance
from ..graph.native import NativeGraph
from .blocks import as_graphs_of_sizes, as_one_graph

__all__ = ["BridgedCUDAGraph"]


class BridgedCUDAGraph(NativeGraph):
    """A CUDA or HIP graph; on a machine without a GPU, an emulated one.

    A subclass of :class:`torch.cuda.CUDAGraph` with the same methods and the same errors, and with
    four additions. After a failed capture the process can capture and draw random numbers again. A
    graph that is dropped in the middle of its capture ends the capture first (on HIP the process
    would abort). :func:`gfxgraph.stats` counts captures and replays. And :meth:`capture` does it
    all in one ``with`` block, on request for any batch size.

    Args:
        keep_graph: keep the ``cudaGraph_t`` after the capture, so that it can be inspected or
            changed before :meth:`instantiate`. Default ``False``.
    """

    def capture(
        self,
        *,
        dynamic_shapes: bool = False,
        buckets: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
        model_fn: Callable[..., Any] | None = None,
        dims: Dims | None = None,
        pad: Padding | Mapping[str, Padding] = "auto",
        larger: Literal["eager", "split", "error"] = "eager",
        rows: Literal["judge", "independent"] = "judge",
        verify: Tolerance = True,
        pool: PoolHandle | None = None,
        capture_error_mode: str = "thread_local",
        check_input_liveness: bool = False,
    ) -> AbstractContextManager[None]:
        """Capture a ``with`` block; with ``dynamic_shapes`` for any batch size.

        >>> with g.capture(model_fn=m):
        ...     out = m(static_input)
        >>> static_input.copy_(x)
        >>> g.replay()  # out holds the new result

        >>> with g.capture(dynamic_shapes=True, buckets=[1, 4, 8, 16, 32], model_fn=m):
        ...     out = m(static_input)
        >>> static_input[:12].copy_(x)
        >>> y = g.replay(batch_size=12)  # from the graph of 16 rows, padded; 12 rows

        Without ``dynamic_shapes`` it is a safe form of ``torch.cuda.graph``: the block is captured
        on a stream of its own. As there, warm the function up first. With ``dynamic_shapes`` the
        block runs once eagerly. Then ``model_fn`` is captured for each bucket, and its arguments in
        the block become the static inputs.

        The block should be a single call of ``model_fn``: with ``dynamic_shapes`` nothing else in
        it is replayed. If the capture fails, each replay makes the call of ``model_fn`` eagerly,
        with a warning, and :func:`gfxgraph.stats` counts it. A failure of the capture is a
        ``RuntimeError`` (torch and the driver raise no other) from inside ``model_fn`` or from the
        end of the capture, if ``model_fn`` then runs eagerly with the same arguments without an
        error. The writes and random numbers of this trial are undone. All other errors belong to
        the block: they are raised, and nothing is captured. These are errors of the block itself,
        errors that ``model_fn`` raises eagerly too, and errors of other classes.

        Graphs of buckets and eager calls run in the inference and autocast mode of the capture, and
        without autograd, as a graph does.

        Args:
            dynamic_shapes: capture a graph for each bucket. Default ``False``: one graph.
            buckets: the sizes, needed for ``dynamic_shapes``: see
                :class:`~gfxgraph.ShapeBucketPool`, also for the next five.
            model_fn: the function, module or method that the block calls: a Python function, or an
                object whose class has a ``__call__`` in Python. Needed for ``dynamic_shapes``.
                Default ``None``: where the capture fails, the error is raised.
            dims: which dimensions are dynamic. Default: the first of each tensor is ``"batch"``.
            pad: what to pad with. Default ``"auto"``.
            larger: how to answer sizes above the largest bucket. Default ``"eager"``.
            rows: ``"independent"``: padding is known to do no harm. Default ``"judge"``.
            verify: tolerance of the comparisons with eager execution. Default ``True``.
            pool: as for :meth:`capture_begin`; not with ``dynamic_shapes``.
            capture_error_mode: as for :meth:`capture_begin`, but ``"thread_local"`` by default; of
                no effect with ``dynamic_shapes``.
            check_input_liveness: as for :meth:`capture_begin`; not with ``dynamic_shapes``.

        Returns:
            The context manager. The static output (``out`` above) stays unbound if the capture
            fails inside ``model_fn``: then take the result of :meth:`replay`.

        Raises:
            ArgumentError: an argument has a wrong value, or does not go with the others; with
                ``dynamic_shapes`` also if the block does not call ``model_fn`` exactly once.
            CaptureError: the current stream is capturing already, or the graph holds a capture.
            MemoryCapError: see :meth:`capture_begin`; with ``dynamic_shapes``, a bucket without
                room runs eagerly instead.
            RuntimeError: the capture failed, and nothing can stand in for it.
        """
        self.check_that_it_may_begin()
        if dynamic_shapes:
            if pool is not None or check_input_liveness:
                raise ArgumentError(
                    "capture(dynamic_shapes=True) takes no pool= and no check_input_liveness=: "
                    "its graphs have a pool of their own, and keep the tensors that they read "
                    "alive."
                )
            if buckets is None or model_fn is None:
                raise ArgumentError(
                    "capture(dynamic_shapes=True) needs buckets=, such as [1, 4, 8, 16], and "
                    "model_fn=, the function or module that the with block calls."
                )
            sized = ShapeBucketPool(
                model_fn, buckets, dims=dims, pad=pad, larger=larger, rows=rows, verify=verify
            )
            return as_graphs_of_sizes(self, model_fn, sized, dims)
        if buckets is not None or dims is not None:
            raise ArgumentError("capture(buckets=, dims=): pass dynamic_shapes=True as well.")
        return as_one_graph(
            self,
            model_fn,
            pool=pool,
            capture_error_mode=capture_error_mode,
            check_input_liveness=check_input_liveness,
        )

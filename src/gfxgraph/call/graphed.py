"""``graphed``: a callable that captures what it is called with, and replays it from then on."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

import torch

from ..errors import ArgumentError
from ..graph.compare import Tolerance
from ..graph.lookups import STAND_INS
from ..interpose.codes import address
from ..interpose.dynamo import opaque
from ..interpose.source import leave_out_ours, name_of
from .buckets.padded import new_dispatcher
from .buckets.padding import Padding
from .buckets.sizes import Buckets, Dims, Larger, OutDims, Rows
from .compiled import Compile
from .dispatch import Dispatcher, reset_with
from .number_inputs import check_inputs
from .options import Branching, CompileOptions, GraphedOptions, Options
from .replay import NO_MATCH
from .stats import GraphedStats
from .suitable import check_function

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Graphed", "GraphedStats", "bound_to", "compile", "graphed"]

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Self = TypeVar("Self")


class _Module(Protocol[P, R_co]):
    """A module, which takes and gives what its ``forward`` does."""

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class _Decorator(Protocol):
    """Makes a :class:`Graphed` that takes and gives what the function does."""

    @overload
    def __call__(self, fn: _Module[P, R]) -> Graphed[P, R]: ...

    @overload
    def __call__(self, fn: Callable[P, R]) -> Graphed[P, R]: ...


@overload
def graphed(fn: _Module[P, R], **options: Unpack[GraphedOptions]) -> Graphed[P, R]: ...


@overload
def graphed(fn: Callable[P, R], **options: Unpack[GraphedOptions]) -> Graphed[P, R]: ...


@overload
def graphed(fn: None = None, **options: Unpack[GraphedOptions]) -> _Decorator: ...


def graphed(
    fn: Any = None,
    *,
    warmup: int = 2,
    outputs: Literal["own", "view"] = "own",
    verify: Tolerance = True,
    fallback: Literal["eager", "raise"] = "eager",
    max_graphs: int = 32,
    branching: Branching = "auto",
    collectives: Literal["split", "inside", "refuse"] = "split",
    group: Any = None,
    buckets: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
    dims: Dims | None = None,
    pad: Padding | Mapping[str, Padding] = "auto",
    larger: Larger = "eager",
    out_dims: OutDims | None = None,
    rows: Rows = "judge",
    inputs: Sequence[str] = (),
    compile: bool | str | Mapping[str, Any] | Compile = False,
) -> Any:
    """Run a function, a module or a method from CUDA or HIP graphs; on a CPU, from emulated ones.

    The first call with arguments of a new kind runs ``fn`` as it is and returns what it gives;
    then a graph is warmed up, captured, compared with eager execution, and every trace of that is
    taken back. Later calls of that kind copy the arguments into static inputs and replay. A kind is
    the structure of the arguments, shape, dtype and device of every tensor, how it lies in memory
    where ``fn`` could tell, every other argument, grad mode, inference mode, autocast and the
    module's training flag.

    Where no graph can be made, the call runs eagerly: logged once for each reason and counted in
    :meth:`Graphed.stats`.

    Args:
        fn: the function, ``torch.nn.Module`` or method; used as a decorator it may be left out.
            In a class, each instance has its own graphs, released with it and left out of copies
            and pickles. ``self.f = graphed(module)`` inside another module does not register
            ``module`` there, since a :class:`Graphed` is no module: assign the module too, or write
            ``module.forward = graphed(module.forward)``.
        warmup: eager runs before a capture, on the stream of the capture, beside the first call
            itself. At least 1, default 2; with compiled code at least 3, of which one compiles. The
            first call takes the place of the second of two runs if it gave the result of the one
            before, and the function writes nothing.
        outputs: ``"own"`` (default): each call returns new tensors. ``"view"``: it returns the
            static outputs, which the next call overwrites.
        verify: compare the first replay of each graph with eager execution: ``True`` (default)
            with a tolerance by dtype, a number as the tolerance for floating-point tensors
            (relative to the largest magnitude, or absolute below 1), ``False``: do not.
        fallback: ``"eager"`` (default), or ``"raise"`` the reason where no graph can be made.
        max_graphs: how many graphs to keep; the least recently used one is released. Default 32.
        branching: ``"auto"`` (default): a function that reads data of the device which depends on
            its inputs becomes several graphs, and the value read decides which one is next. Where
            a loop reads in each of many turns, the device decides if that was measured to be
            faster. ``"device"``: where an ``if``, a ``while`` or an ``if ...: break`` reads such
            data and only computes, the device decides, in one graph; elsewhere the host
            (docs/control-flow.md). ``"off"``: it runs eagerly, and says which line is the reason.
            A host read that does not depend on the inputs is folded in any case.
        collectives: what becomes of collectives of ``torch.distributed`` in groups of several
            ranks (``docs/ranks.md``). ``"split"`` (default): they run eagerly between graphs, and
            nothing that one rank does matters to another. ``"inside"``: a graph holds them, with
            NCCL and RCCL and on the emulated device; before each call the ranks of the group agree
            on the host that all replay, or none does. Where that cannot be they are split, or run
            eagerly; with ``compile`` they are split. ``"refuse"``: the function runs eagerly.
        group: with ``collectives="inside"``: the ``torch.distributed.ProcessGroup`` of the ranks
            that call the function together, also of those that send nothing in it; the groups of
            its collectives have to be parts of it.
            Default: the group of its collectives, if that is one.
        buckets: pad each call to the smallest of these sizes that fits, and cut the result: graphs
            of a few sizes answer calls of any, as with :class:`~gfxgraph.ShapeBucketPool`.
            Default: each shape has a graph of its own.
        dims: with ``buckets``: argument name -> dimension -> name of the size. Default: the first
            dimension of each tensor that has one is ``"batch"``.
        pad: with ``buckets``: what to pad with, see :class:`~gfxgraph.ShapeBucketPool`.
        larger: with ``buckets``: ``"eager"`` (default), ``"split"`` or ``"error"``, for calls above
            the largest one.
        out_dims: with ``buckets``: for each tensor of the result, dimension -> name. Default: seen
            by comparing two sizes.
        rows: with ``buckets``: ``"independent"``: padding is known to leave alone the rows that are
            kept, so it is not judged; see :class:`~gfxgraph.ShapeBucketPool`. Default ``"judge"``.
        inputs: names of parameters whose numbers (``int``, ``float``) change from call to call:
            one graph answers all of them, since the number is an input on the device. With tensors
            it computes there what torch computes for the Python number; where Python needs the
            value (``if scale > 1``, ``range(steps)``, a size), that is a host read, whose outcome
            decides how the call goes on. Numbers above 2**15 (``int``: 2**26) are part of the key,
            as those of other parameters are. Default: none.
        compile: ``True``: compile ``fn`` with ``torch.compile`` and capture the compiled code, the
            whole call in one graph, also where Dynamo breaks it into regions. A string is the
            ``mode``, a dict holds keyword arguments of ``torch.compile``. ``"tuned"`` searches
            settings of Inductor for 600 seconds, ``{"mode": "tuned", "seconds": 60}`` for 60, and
            remembers the fastest on disk (``docs/compile.md``). Default ``False``. Beside what is
            given, ``dynamic`` is ``False`` (with ``buckets`` ``True``: one compilation
            serves all of them), Inductor draws the random numbers of eager execution, and has no
            graphs of its own: ``"max-autotune"`` goes without, ``"reduce-overhead"`` is refused.
            The first call is answered by ``fn`` as it is, and takes as long as the compilation.
            What is compiled has to give what ``fn`` gives, within 4 times the tolerance of the
            coarsest dtype it computes in (the number, where ``verify`` is one). Where compiling
            fails, gives something else, or the compiled code cannot be captured, the graph is that
            of ``fn`` as it is, logged once and told in ``stats().not_compiled``; with
            ``fallback="raise"`` it is an error.

    Returns:
        A :class:`Graphed`, called like ``fn``; attributes that it does not have are those of
        ``fn``.

    Raises:
        ArgumentError: ``fn`` is not callable or is a generator or coroutine function, or an option
            holds what it does not take.
    """
    of_sizes = None if buckets is None else Buckets(buckets, dims, pad, larger, out_dims, rows)
    how = Compile.of(compile)
    if isinstance(inputs, str):
        raise ArgumentError(f"graphed(inputs={inputs!r}): expected names, as in [{inputs!r}].")
    if inputs and how is not None:
        raise ArgumentError(
            "graphed(inputs=, compile=): torch.compile takes a number as a constant. Pass a tensor "
            "instead of the number, or leave compile= out."
        )
    if how is not None and how.seconds is not None and verify is False:
        raise ArgumentError(
            'graphed(compile="tuned", verify=False): expected True or a tolerance, since settings '
            "are kept only if their code gives what eager execution gives."
        )
    options = Options(
        warmup,
        outputs,
        verify,
        fallback,
        max_graphs,
        branching,
        collectives,
        of_sizes,
        how,
        tuple(inputs),
        group,
    )
    given = (dims, pad, larger, out_dims, rows)
    if of_sizes is None and given != (None, "auto", "eager", None, "judge"):
        raise ArgumentError(
            "graphed(dims=, pad=, larger=, out_dims=, rows=) are for buckets=, which is not given."
        )
    if of_sizes is not None and outputs == "view":
        raise ArgumentError(
            'graphed(buckets=, outputs="view"): the graphs of all buckets use the same memory, so '
            'there is nothing to view. Use outputs="own".'
        )
    if fn is None:
        return functools.partial(Graphed, options=options)
    return Graphed(fn, options=options)


@overload
def compile(fn: _Module[P, R], **options: Unpack[CompileOptions]) -> Graphed[P, R]: ...


@overload
def compile(fn: Callable[P, R], **options: Unpack[CompileOptions]) -> Graphed[P, R]: ...


@overload
def compile(fn: None = None, **options: Unpack[CompileOptions]) -> _Decorator: ...


def compile(
    fn: Any = None, *, mode: str | None = None, measure: bool = True, **options: Any
) -> Any:
    """Compile a function, a module or a method, and capture each whole call as one graph.

    That is :func:`graphed` with ``compile=``, and a choice: the first call with arguments of a new
    kind captures the compiled code and the function as it is, times 20 calls of both and, if the
    function only computes, 20 eager ones. It keeps what was fastest by the median; calls that are
    faster eagerly have no graph, unless ``fallback="raise"``. It is compiled with
    :func:`gfxgraph.inductor_settings`. What was measured is in the log (``measured``) and in
    ``stats()``: the ``report`` of the graph, ``not_compiled`` or ``refused``.

    Args:
        fn: see :func:`graphed`; ``None``: give a decorator.
        mode: of ``torch.compile``, or ``"tuned"``, see :func:`graphed`; default ``"default"``, on
            NVIDIA and on AMD. Inductor's own graphs are never used.
        measure: ``False``: keep the compiled code without timing it. Default ``True``. On the
            emulated device nothing is timed.
        options: of :func:`graphed`, without ``compile``.

    Raises:
        ArgumentError: see :func:`graphed`; or an argument that neither has.
    """
    takes = inspect.signature(graphed).parameters.keys() - {"fn", "compile"}
    for name in options.keys() - takes:
        raise ArgumentError(
            f"gfxgraph.compile({name}=): expected mode, measure, or an argument of graphed() but "
            f"compile: {', '.join(sorted(takes))}. It always compiles; other arguments of "
            "torch.compile are those of graphed(compile={...})."
        )
    if not isinstance(measure, bool):
        raise ArgumentError(f"gfxgraph.compile(measure={measure!r}): expected True or False.")
    if mode == "tuned" and not measure:
        raise ArgumentError('gfxgraph.compile(mode="tuned", measure=False): a search measures.')
    how: Any = Compile.of({"mode": "default" if mode is None else mode}, measure, recommended=True)
    return graphed(fn, compile=how, **options)


class _Replaying(Generic[P, R]):
    # What a graphed callable and a graphed method of one instance have in common.
    __slots__ = ()
    __wrapped__: Callable[P, R]
    _dispatcher: Dispatcher

    def stats(self) -> GraphedStats:
        """The counts, graphs and reasons since this callable was made or reset.

        Of a method, those of the instance alone.
        """
        return self._dispatcher.stats()

    def reset(self) -> None:
        """Release all graphs and forget all reasons; the next call starts anew."""
        self._dispatcher.reset()

    def static_inputs(
        self, /, *args: P.args, **kwargs: P.kwargs
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The static inputs of the graph that a call with these arguments replays.

        Write into them and call with them, and nothing is copied.

        Returns:
            ``args`` and ``kwargs`` with each tensor replaced by the static input.

        Raises:
            CaptureError: there is no graph for these arguments; call once first.
        """
        return self._dispatcher.static_inputs(self.__wrapped__, args, kwargs)

    def __repr__(self) -> str:
        return f"graphed({self.__wrapped__!r})"


class Graphed(_Replaying[P, R]):
    """A callable that replays graphs, with the arguments of ``fn``; made by :func:`graphed`."""

    def __init__(self, fn: Callable[P, R], *, options: Options) -> None:
        check_function(fn, "graphed()")
        if options.buckets is not None:
            options.buckets.of_arguments(fn)
        check_inputs(fn, options.inputs)
        self._options = options
        self._dispatcher = new_dispatcher(name_of(fn), options)
        reset_with(self, self._dispatcher)
        if isinstance(fn, (types.FunctionType, types.MethodType)):
            functools.update_wrapper(self, fn, updated=())
        self.__wrapped__ = fn

    @opaque
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call ``fn``, from a graph if there is one for these arguments."""
        dispatcher = self._dispatcher
        try:
            result: R = dispatcher.fast_path(self.__wrapped__, args, kwargs)
            if result is not NO_MATCH:
                return result
            if args and self._is_method_of(args[0]):  # Parent.method(self, x), or under @property
                bound: Any = _BoundGraphed(self, args[0])
                result = bound(*args[1:], **kwargs)
            else:
                result = dispatcher(self.__wrapped__, args, kwargs)
        except Exception as error:
            leave_out_ours(error)
            raise
        return result

    def _is_method_of(self, instance: Any) -> bool:
        # That a tensor is no instance is known without a look at its hundreds of members.
        is_tensor = type(instance) in (torch.Tensor, torch.nn.Parameter)
        return (
            not is_tensor
            and isinstance(self.__wrapped__, types.FunctionType)
            and any(
                self in (member, getattr(member, "fget", None))
                for cls in type(instance).__mro__[:-1]
                for member in vars(cls).values()
                if isinstance(member, (Graphed, property))
            )
        )

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Graphed[P, R]: ...

    @overload
    def __get__(
        self: Graphed[Concatenate[Self, Q], R], instance: Self, owner: type | None = None
    ) -> _BoundGraphed[Q, R]: ...

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None or not hasattr(type(self.__wrapped__), "__get__"):
            return self
        if isinstance(instance, type):  # under @classmethod
            return types.MethodType(self, instance)
        return _BoundGraphed(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name in ("__wrapped__", "_dispatcher", "_options"):  # not set yet: a copy in the making
            raise AttributeError(name)
        value = getattr(self.__wrapped__, name)
        if isinstance(self.__wrapped__, torch.nn.Module) and isinstance(value, types.MethodType):
            return functools.partial(self._forward, value)
        return value

    def _forward(self, method: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        return self if result is self.__wrapped__ else result  # graphed(m).eval() stays graphed

    def __setattr__(self, name: str, value: Any) -> None:
        # What the program keeps on its function, or sets of its module, is theirs.
        wrapped = self.__dict__.get("__wrapped__")
        if wrapped is None or name in self.__dict__:
            super().__setattr__(name, value)
        else:
            setattr(wrapped, name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__:
            super().__delattr__(name)
        else:
            delattr(self.__wrapped__, name)

    def __reduce__(self) -> Any:
        # A decorated function is found under its own name; anything else is wrapped anew.
        fn = self.__wrapped__
        found: Any = sys.modules.get(getattr(fn, "__module__", None) or "")
        name = getattr(fn, "__qualname__", "")
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is self:
            return name
        return _rewrap, (fn, self._options)


STAND_INS.add(address(Graphed))


def _rewrap(fn: Any, options: Options) -> Graphed[..., Any]:
    return Graphed(fn, options=options)


class _BoundGraphed(_Replaying[P, R]):
    # A graphed method of one instance; its docstring is the method's.
    __slots__ = ("__self__", "__wrapped__", "_dispatcher")
    __doc__ = property(lambda self: self.__wrapped__.__doc__)

    def __init__(self, graphed: Graphed[..., R], instance: Any) -> None:
        self.__self__ = instance
        self.__wrapped__ = graphed.__wrapped__.__get__(instance)
        self._dispatcher = _dispatcher_of(graphed, instance)

    @opaque
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        dispatcher = self._dispatcher
        try:
            result: R = dispatcher.fast_path(self.__wrapped__, args, kwargs)
            if result is NO_MATCH:
                result = dispatcher(self.__wrapped__, args, kwargs)
        except Exception as error:
            leave_out_ours(error)
            raise
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BoundGraphed) and self.__wrapped__ == other.__wrapped__

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __reduce__(self) -> Any:
        return getattr, (self.__self__, self.__wrapped__.__name__)


def answering(fn: object) -> tuple[Callable[..., Any], Dispatcher] | None:
    """What a graphed callable or method calls, and what answers it; ``None``: it is none."""
    return (fn.__wrapped__, fn._dispatcher) if isinstance(fn, _Replaying) else None


def bound_to(graphed: Graphed[..., Any], instance: Any) -> tuple[Callable[..., Any], Dispatcher]:
    """A graphed method of an instance, and what answers its calls.

    Raises:
        ArgumentError: the instance cannot keep graphs.
    """
    bound: _BoundGraphed[..., Any] = _BoundGraphed(graphed, instance)
    return bound.__wrapped__, bound._dispatcher


def _dispatcher_of(graphed: Graphed[..., Any], instance: Any) -> Dispatcher:
    """The dispatcher of a method and an instance; it lives in the instance and dies with it.

    Not in a table of ours, whose entries a weak reference would take out: graphs hold what they
    watch, and that may hold the instance. Only in there the garbage collector sees such a cycle.
    """
    name = f"__gfxgraph_{graphed._dispatcher.name}_{id(graphed)}"
    attributes: dict[str, Any] = getattr(instance, "__dict__", {})
    dispatcher = attributes.get(name)
    # A copy of the instance shares its attributes, but may not share its graphs; and what a pickle
    # brought may bear the name of another.
    if (
        isinstance(dispatcher, Dispatcher)
        and dispatcher.owner is not None
        and dispatcher.owner() is instance
        and dispatcher.method is graphed
    ):
        return dispatcher
    dispatcher = new_dispatcher(graphed._dispatcher.name, graphed._options, graphed)
    try:
        dispatcher.owner = weakref.ref(instance)
        vars(instance)[name] = dispatcher
    except TypeError as error:
        raise ArgumentError(
            f"{graphed!r} is a method of {type(instance).__qualname__}, whose instances have no "
            "__dict__ to keep their graphs in, or no __weakref__. Remove __slots__, or wrap the "
            "bound method with gfxgraph.graphed() where it is used."
        ) from error
    reset_with(instance, dispatcher)
    return dispatcher

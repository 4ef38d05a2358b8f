"""Settings of torch that hold for the whole process, and that a function may change.

A replay changes none of them, so a function that leaves one at another value than it found cannot
be a graph.
"""

from __future__ import annotations

import functools
import re
import sys
import types
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.attention
import torch.overrides
import torch.utils._python_dispatch

from ..device import current_device
from ..device.overrides import WithoutModes
from ..interpose.codes import address

__all__ = [
    "MODES",
    "OTHERS",
    "PRECISIONS",
    "SETTINGS",
    "TELLS_WHO_WATCHES",
    "WRITERS",
    "Setting",
    "Settings",
    "around_autograd",
    "deciding",
    "of_autograd",
]

Settings: TypeAlias = dict[str, tuple[Callable[[], Any], Any]]
"""Name -> getter and value of settings by which torch picks its kernels."""


class Setting(NamedTuple):
    """How a setting is read and written.

    Attributes:
        name: for messages.
        read: gives it; ``None`` where torch refuses to tell.
        write: sets it.
        of_thread: whether each thread has its own.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    of_thread: bool = False


def _of_c(name: str, get: str, put: str = "", *args: str) -> Setting | None:
    getter: Any = getattr(torch._C, f"_get_{get}", None)
    setter: Any = getattr(torch._C, f"_set_{put or get}", None)
    if getter is None or setter is None:
        return None

    def read() -> Any:
        try:
            return getter(*args)
        except RuntimeError:  # the older way to ask, after the newer one was used to set
            return None

    def write(value: Any) -> None:
        if value is not None:
            # What is set to two values is refused where the older way is asked for the newer one.
            with suppress(RuntimeError):
                setter(*args, *(value if type(value) is tuple else (value,)))

    return Setting(name, read, write)


def _deterministic() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _set_deterministic(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _autocast_dtypes() -> tuple[torch.dtype, ...]:
    return tuple(torch.get_autocast_dtype(kind) for kind in _AUTOCAST)


def _set_autocast_dtypes(value: tuple[torch.dtype, ...]) -> None:
    for kind, dtype in zip(_AUTOCAST, value, strict=True):
        torch.set_autocast_dtype(kind, dtype)


def _flushes_denormals() -> bool:
    return sys.float_info.min / _TWO == 0.0  # torch cannot be asked


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _set_anomaly(value: tuple[bool, bool]) -> None:
    torch.set_anomaly_enabled(*value)


_order_is_set = False


def _order_of_sdp() -> tuple[int, ...]:
    global _order_is_set
    if not (_order_is_set or current_device().kind == "emulated") and torch.cuda.is_initialized():
        # When torch first chooses a kernel of attention, it puts that of cuDNN first on newer GPUs.
        # That is no change by the function that happens to be the first.
        with WithoutModes(), torch.inference_mode(False), torch.no_grad():
            one = torch.empty(1, 1, 1, 8, dtype=torch.float16, device="cuda")
            torch._fused_sdp_choice(one, one, one)
        _order_is_set = True
    return tuple(torch._C._get_sdp_priority_order())


def _set_order_of_sdp(value: tuple[int, ...]) -> None:
    torch._C._set_sdp_priority_order(list(value))


_AUTOCAST = ("cpu", "cuda")
_TWO = float("2")  # no constant, or the compiler of Python would divide
_CUBLAS = "torch.backends.cuda.matmul.allow_"
_REDUCED = "_reduced_precision_reduction"
_CUDNN = "torch.backends.cudnn."
_SDP = ("flash", "mem_efficient", "math", "cudnn")
_ORDER = "the order of torch.nn.attention.sdpa_kernel"
_REDUCED_IN_MATH = "torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp"
_FOUND = (
    Setting("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    Setting("torch.use_deterministic_algorithms", _deterministic, _set_deterministic),
    Setting("the number of threads of torch", torch.get_num_threads, torch.set_num_threads),
    Setting("torch.set_autocast_dtype", _autocast_dtypes, _set_autocast_dtypes, of_thread=True),
    Setting(
        "torch.set_flush_denormal", _flushes_denormals, torch.set_flush_denormal, of_thread=True
    ),
    Setting("torch.autograd.set_detect_anomaly", _anomaly, _set_anomaly),
    Setting("torch.set_warn_always", torch.is_warn_always_enabled, torch.set_warn_always),
    Setting(
        "torch.backends.mha.set_fastpath_enabled",
        torch.backends.mha.get_fastpath_enabled,
        torch.backends.mha.set_fastpath_enabled,
    ),
    _of_c("torch.backends.mkldnn", "mkldnn_enabled"),
    _of_c("torch.backends.quantized.engine", "qengine"),
    _of_c(
        "torch.utils.deterministic.fill_uninitialized_memory",
        "deterministic_fill_uninitialized_memory",
    ),
    # First what torch 2.9 has in place of allow_tf32, then the older flags, which set that too.
    *(
        _of_c(
            f"the fp32_precision of cuda for {operation}",
            "fp32_precision_getter",
            "fp32_precision_setter",
            "cuda",
            operation,
        )
        for operation in ("matmul", "conv", "rnn")
    ),
    _of_c(f"{_CUBLAS}tf32", "cublas_allow_tf32"),
    _of_c("torch.set_float32_matmul_precision", "float32_matmul_precision"),
    *(
        _of_c(f"{_CUBLAS}{dtype}{_REDUCED}", f"cublas_allow_{dtype}{_REDUCED}")
        for dtype in ("fp16", "bf16")
    ),
    _of_c(f"{_CUBLAS}fp16_accumulation", "cublas_allow_fp16_accumulation"),
    _of_c(_REDUCED_IN_MATH, "math_sdp_allow_fp16_bf16_reduction"),
    Setting(_ORDER, _order_of_sdp, _set_order_of_sdp),
    *(
        _of_c(_CUDNN + name, f"cudnn_{name}")
        for name in ("allow_tf32", "benchmark", "deterministic", "enabled")
    ),
    *(
        _of_c(f"torch.backends.cuda.enable_{kind}_sdp", f"{kind}_sdp_enabled", f"sdp_use_{kind}")
        for kind in _SDP
    ),
)
SETTINGS = [setting for setting in _FOUND if setting is not None]


def _default_device() -> torch.device | None:
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


MODES = [
    Setting("torch.set_grad_enabled", torch.is_grad_enabled, torch.set_grad_enabled, True),
    *(
        Setting(
            f"torch.set_autocast_enabled({kind!r})",
            functools.partial(torch.is_autocast_enabled, kind),
            functools.partial(torch.set_autocast_enabled, kind),
            of_thread=True,
        )
        for kind in _AUTOCAST
    ),
    Setting("torch.set_default_device", _default_device, torch.set_default_device, True),
]
"""Modes of the current thread. Most functions enter them as a context manager."""


_IN_FLOAT32 = {torch.float32, torch.complex64}
_IN_HALF = {torch.float16, torch.bfloat16}
# Where kernels are chosen by the flags of cuDNN and by those of attention. A flag that is off may
# hide the operator that it would choose, so then it is always asked for.
_USES_CUDNN = re.compile("conv|cudnn|miopen|batch_norm|rnn|lstm|gru|ctc|grid|affine")
_USES_SDP = re.compile("attention|sdp|flash|transformer")
_MODULES = (torch.backends, torch.backends.cuda, torch.backends.cudnn)
READERS = frozenset(
    address(item)
    for item in (
        *_MODULES,
        *(
            value
            for module in _MODULES
            for value in vars(module).values()
            if str(getattr(value, "__module__", "")).startswith("torch.backends")
        ),
        torch.get_float32_matmul_precision,
        torch.are_deterministic_algorithms_enabled,
        torch.is_deterministic_algorithms_warn_only_enabled,
        torch.get_deterministic_debug_mode,
        *(value for name, value in vars(torch._C).items() if name.startswith("_get_")),
    )
)
"""Whoever gets hold of one of these may ask for a setting."""
WRITERS = READERS | frozenset(
    address(item)
    for item in (
        torch._C,
        torch.autograd.detect_anomaly,
        torch.autograd.set_detect_anomaly,
        torch.autograd.set_multithreading_enabled,
        torch.set_anomaly_enabled,
        torch.set_autocast_dtype,
        torch.set_default_dtype,
        torch.set_deterministic_debug_mode,
        torch.set_float32_matmul_precision,
        torch.set_num_threads,
        torch.set_printoptions,
        torch.set_warn_always,
        torch.use_deterministic_algorithms,
        torch.utils.deterministic,
        torch.nn.attention.sdpa_kernel,
        torch._tensor_str.PRINT_OPTS,
        torch._tensor_str.printoptions,
        *(value for name, value in vars(torch._C).items() if name.startswith("_set_")),
    )
)
"""Whoever gets hold of one of these may set a setting."""

# Not has_torch_function(), which functions of torch.nn.functional ask to call the mode that is on.
_OF_MODES = re.compile("(is|len)_torch_function|function_(mode|stack)|dispatch_(mode|stack|tls)")
_HIDING = ("DisableTorchFunction",)
_OF_TRACING = ("gettrace", "getprofile", "get_tool", "get_events", "get_local_events")
TELLS_WHO_WATCHES = frozenset(
    address(value)
    for module in (
        *(torch._C, torch.overrides, torch.utils._python_dispatch),
        *(sys, getattr(sys, "monitoring", sys)),
    )
    for name, value in vars(module).items()
    if callable(value) and (_OF_MODES.search(name) or name in _OF_TRACING + _HIDING)
)
"""Whoever gets hold of one of these may do something else where nobody watches."""


def _precisions() -> Iterator[tuple[str, Callable[[], Any]]]:
    if not hasattr(torch._C, "_get_fp32_precision_getter"):
        return
    of_each = [(kind, of) for kind in ("cuda", "mkldnn") for of in ("all", "matmul", "conv", "rnn")]
    for backend, operation in (("generic", "all"), *of_each):
        asked = functools.partial(_getter("fp32_precision_getter"), backend, operation)
        yield f"the fp32_precision of {backend} for {operation}", asked


def _tells_precisions(item: Any) -> bool:
    """Whether it is a function, a property or code of ``torch.backends`` that gives precisions."""
    if type(item) is torch.backends.ContextProp:
        return _tells_precisions(item.getter)
    code = item.__code__ if type(item) is types.FunctionType else item
    if type(code) is not types.CodeType:
        return False
    texts = (*code.co_names, *filter(_is_text, code.co_consts))
    return "fp32_precision" in " ".join(texts) or any(map(_tells_precisions, code.co_consts))


def _is_text(item: Any) -> bool:
    return type(item) is str


def _telling_precisions() -> Iterator[Any]:
    """All that a program may get hold of to ask for a precision, but for objects which have it as
    an attribute."""
    yield _getter("fp32_precision_getter")
    for name, module in list(sys.modules.items()):
        if not f"{name}.".startswith("torch.backends.") or not isinstance(module, types.ModuleType):
            continue
        behind = vars(module).get("m")  # torch puts an object with properties in place of some
        found = [module, type(module), *([behind] if isinstance(behind, types.ModuleType) else [])]
        found += [kind for owner in found[:] for kind in vars(owner).values() if _is_own(kind)]
        for owner in found:
            for item in filter(_tells_precisions, vars(owner).values()):
                yield item
                if type(item) is types.FunctionType:  # it may make others
                    yield from filter(_tells_precisions, item.__code__.co_consts)


def _is_own(kind: Any) -> bool:
    return isinstance(kind, type) and kind.__module__.startswith("torch.backends")


def _others() -> dict[int, list[tuple[str, Callable[[], Any]]]]:
    found: dict[int, list[tuple[str, Callable[[], Any]]]] = {}
    asked: Any
    reader: Any

    def add(reader: object, getter: Callable[[], Any], name: str) -> None:
        found.setdefault(address(reader), []).append((name, getter))

    plain: list[Any] = [
        torch.get_num_threads,
        torch.get_num_interop_threads,
        torch.is_anomaly_enabled,
        torch.is_anomaly_check_nan_enabled,
        torch.is_warn_always_enabled,
        torch.is_autocast_cache_enabled,
        torch.backends.mha.get_fastpath_enabled,
        torch.multiprocessing.get_sharing_strategy,
        *(value for name, value in vars(torch.__future__).items() if name.startswith("get_")),
    ]
    for getter in plain:
        add(getter, getter, f"{getter.__name__}()")
    sparse = torch.sparse.check_sparse_tensor_invariants
    add(sparse, sparse.is_enabled, "torch.sparse.check_sparse_tensor_invariants")
    backends = torch.backends
    in_c = {
        "mkldnn_enabled": backends.mkldnn,
        "mkldnn_deterministic": backends.mkldnn,
        "onednn_allow_tf32": backends.mkldnn,
        "miopen_immediate": getattr(backends, "miopen", None),
        "qengine": backends.quantized,
        "deterministic_fill_uninitialized_memory": torch.utils.deterministic,
    }
    for name, reader in in_c.items():
        setting = _of_c(name, name)
        if reader is not None and setting is not None:
            for one in (reader, _getter(name)):
                add(one, setting.read, name)
    for kind in ("blas", "linalg", "rocm_fa"):
        reader = getattr(backends.cuda, f"preferred_{kind}_library", None)
        preferred: Any = getattr(torch._C, f"_get_{kind}_preferred_backend", None)
        if reader is not None and preferred is not None:
            # Each call gives another object that stands for the same library.
            asked = functools.partial(_number_of, preferred)
            for one in (reader, preferred):
                add(one, asked, f"torch.backends.cuda.preferred_{kind}_library")
    for one in _telling_precisions() if PRECISIONS else ():
        for name, asked in PRECISIONS:
            add(one, asked, name)
    for kind in ("cpu", "cuda"):
        asked = functools.partial(torch.get_autocast_dtype, kind)
        old = torch.get_autocast_gpu_dtype if kind == "cuda" else torch.get_autocast_cpu_dtype
        of_cpu = torch.cpu.amp.autocast_mode.autocast
        of_autocast = torch.autocast, torch.cuda.amp.autocast, of_cpu
        for reader in (torch.get_autocast_dtype, old, *of_autocast):
            add(reader, asked, f"torch.get_autocast_dtype({kind!r})")
        is_on = functools.partial(torch.is_autocast_enabled, kind)
        for switch in (torch.is_autocast_enabled, torch.is_autocast_cpu_enabled):
            add(switch, is_on, f"torch.is_autocast_enabled({kind!r})")
    return found


def deciding(kernels: Collection[tuple[Any, Any]] | None, on_host: bool) -> Settings:
    """The settings by which torch picks the kernels of a recorded run.

    They are asked in each call, so they are few: about 30 ns each.

    Args:
        kernels: the operators of the run, with the dtypes that they were given; ``None``: all of
            the settings, since code in Python may have asked for any.
        on_host: for graphs that are emulated, whose kernels are the CPU's.

    Returns:
        Name -> getter and present value. A getter may raise ``RuntimeError`` after a change.
    """
    found = {"torch.use_deterministic_algorithms": _getter("deterministic_algorithms")}
    names = {operator._name for operator, _ in kernels or ()}
    dtypes = {dtype for _, dtype in kernels or ()}
    # What is not torch's own may ask for anything.
    foreign = kernels is None or any(not name.startswith(("aten::", "prims::")) for name in names)
    for dtype, kind in ((torch.float16, "fp16"), (torch.bfloat16, "bf16")):
        if foreign or dtype in dtypes:
            found[f"{_CUBLAS}{kind}{_REDUCED}"] = _getter(f"cublas_allow_{kind}{_REDUCED}")
    if foreign or torch.float16 in dtypes:
        found[f"{_CUBLAS}fp16_accumulation"] = _getter("cublas_allow_fp16_accumulation")
    flags = {name: _getter(f"cudnn_{name}") for name in ("enabled", "benchmark", "deterministic")}
    uses_cudnn = foreign or any(map(_USES_CUDNN.search, names))
    if uses_cudnn or not flags["enabled"]():
        found |= {_CUDNN + name: getter for name, getter in flags.items()}
    allowed = {kind: _getter(f"{kind}_sdp_enabled") for kind in _SDP}
    if foreign or any(map(_USES_SDP.search, names)) or not all(get() for get in allowed.values()):
        found |= {f"torch.backends.cuda.enable_{kind}_sdp": get for kind, get in allowed.items()}
        found[_ORDER] = _getter("sdp_priority_order")
        if foreign or not dtypes.isdisjoint(_IN_HALF):
            found[_REDUCED_IN_MATH] = _getter("math_sdp_allow_fp16_bf16_reduction")
    if foreign or not dtypes.isdisjoint(_IN_FLOAT32):
        if on_host:
            name = "float32_matmul_precision"
            found[f"torch.set_{name}"] = _precision_now("mkldnn", "matmul", name)
        else:
            found[f"{_CUBLAS}tf32"] = _precision_now("cuda", "matmul", "cublas_allow_tf32")
            if uses_cudnn:
                found[f"{_CUDNN}allow_tf32"] = _precision_now("cuda", "conv", "cudnn_allow_tf32")
    return {name: (getter, getter()) for name, getter in found.items()}


def around_autograd() -> str | None:
    """The mode of autograd around a call that a replay would ignore; ``None``: there is none."""
    if torch.is_anomaly_enabled():
        return (
            "called under torch.autograd.set_detect_anomaly(True), and autograd takes part inside: "
            "a replay would find no anomaly"
        )
    if _saved_tensors_hooks() is not None:
        return (
            "called under torch.autograd.graph.saved_tensors_hooks, and autograd takes part "
            "inside: a replay would not call them"
        )
    return None


def _saved_tensors_hooks() -> Any:
    """The innermost hooks through which autograd saves tensors; ``None``: there are none."""
    return _TOP_HOOKS(True)  # also while something is traced


_AUTOGRAD: Any = torch._C._autograd
_TOP_HOOKS = _AUTOGRAD._top_saved_tensors_default_hooks
_MAY_HAVE_HOOKS = _AUTOGRAD._saved_tensors_hooks_is_enabled


def of_autograd() -> Settings:
    """Modes of autograd that a graph depends on if autograd takes part inside of it."""
    found: dict[str, Callable[[], Any]] = {
        "torch.autograd.set_detect_anomaly": torch.is_anomaly_enabled,
        "torch.autograd.graph.saved_tensors_hooks": _saved_tensors_hooks,
        "torch.autograd.graph.disable_saved_tensors_hooks": _MAY_HAVE_HOOKS,
    }
    return {name: (getter, getter()) for name, getter in found.items()}


def _getter(name: str) -> Callable[..., Any]:
    getter: Callable[..., Any] = getattr(torch._C, f"_get_{name}")
    return getter


def _number_of(getter: Callable[[], Any]) -> int:
    return int(getter())


def _precision_now(backend: str, operation: str, name: str) -> Callable[[], Any]:
    """The older way to ask raises once the newer one was used to set it."""
    older = _getter(name)
    try:
        older()
    except RuntimeError:
        return functools.partial(_getter("fp32_precision_getter"), backend, operation)
    return older


PRECISIONS = list(_precisions())
"""Names of settings that objects of ``torch.backends`` have as ``fp32_precision``, and what gives
each. Whoever names that attribute, or gets hold of what gives it, may ask for all of them."""
OTHERS = _others()
"""Id of who may ask for settings that choose no kernel -> their names, and what gives each."""

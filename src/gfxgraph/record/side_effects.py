"""Sees effects outside of torch and of Python objects before they happen.

A replay runs no Python code. Only the first call would write its line to a file, a queue or a log,
and a time would stay the same for ever. Our own runs for a capture must not write anything either,
so such a run ends before its first effect.

Functions in C, such as the methods of an open file, cannot be replaced, and functions that were
imported by name are called past their module. So the profiler hook observes each call, and the
tables below say which calls matter. An audit hook would see less (no method of an open file), could
never be removed, and would slow down each ``id()`` of the process. Standard streams, logging and
warnings end in one function each, which we replace for this thread: there we leave the effect out,
and the run goes on.

Calls that C makes on its own are not seen. Where reads are recorded, what Python code gives to C is
looked at before it is called: ``map(file.write, lines)``, ``functools.partial(file.write)``.
"""

from __future__ import annotations

import contextlib
import dis
import gc
import importlib
import inspect
import io
import itertools
import linecache
import logging
import queue
import sys
import sysconfig
import threading
import tokenize
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import date, datetime
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType
from typing import Any, Literal

import torch

from ..errors import let_go
from ..forking import in_child
from ..interpose.codes import per_code
from ..interpose.interrupts import interrupt_in
from ..interpose.listen import Listening, observing
from ..interpose.patch import intercept, substitute
from ..interpose.source import Source, is_the_users, users_line
from .effects import Unexpected
from .explain import explain

__all__ = ["Acting", "no_side_effects", "side_effects"]

OnEffect = Callable[[str, str], bool]
"""Called with a rule and the name of the call; returns whether to prevent it."""

_WRITE, _READ = "side-effect", "outside-read"

# Functions in C, by rule and module.
_FUNCTIONS: dict[str, dict[str, str]] = {
    _WRITE: {
        "posix": "_exit abort chdir chflags chmod chown copy_file_range dup2 execv execve fchmod "
        "fchown fork forkpty fsync ftruncate kill killpg lchown link lockf mkdir mkfifo mknod nice "
        "posix_fallocate posix_spawn posix_spawnp putenv pwrite pwritev register_at_fork remove "
        "removexattr rename replace rmdir sendfile setxattr splice symlink system truncate umask "
        "unlink unsetenv utime write writev",
        "nt": "_exit abort chdir chmod execv execve fsync ftruncate kill link mkdir putenv remove "
        "rename replace rmdir spawnv spawnve startfile symlink system truncate unlink unsetenv "
        "utime write",
        "_pickle": "dump",
        "marshal": "dump",
        "_posixsubprocess": "fork_exec",
        "_winapi": "CreateProcess",
        "_sqlite3": "connect enable_callback_tracebacks enable_shared_cache register_adapter "
        "register_converter",
        "_signal": "alarm pthread_kill raise_signal set_wakeup_fd setitimer siginterrupt signal",
        "atexit": "register unregister",
        "builtins": "input",
        # Settings of the process, which calls of ours may not change and a replay would not.
        "gc": "disable enable freeze set_debug set_threshold unfreeze",
        "sys": "addaudithook set_asyncgen_hooks set_coroutine_origin_tracking_depth "
        "set_int_max_str_digits setdlopenflags setprofile setrecursionlimit setswitchinterval "
        "settrace",
        "_codecs": "register register_error unregister _unregister_error",
        "_csv": "field_size_limit register_dialect unregister_dialect",
        "_locale": "setlocale",
        "_thread": "stack_size",
        "_tracemalloc": "clear_traces start stop",
        "faulthandler": "cancel_dump_traceback_later disable dump_traceback_later enable register "
        "unregister",
        "resource": "prlimit setrlimit",
        "fcntl": "fcntl flock ioctl lockf",
        "syslog": "openlog syslog",
        "_socket": "setdefaulttimeout",
    },
    _READ: {
        "time": "asctime clock_gettime clock_gettime_ns ctime gmtime localtime monotonic "
        "monotonic_ns perf_counter perf_counter_ns process_time process_time_ns strftime "
        "thread_time thread_time_ns time time_ns",
        "posix": "access getcwd getloadavg getrandom listdir lstat open pread preadv read readlink "
        "readv scandir stat statvfs times urandom wait waitpid",
        "nt": "access getcwd listdir lstat open read readlink scandir stat times urandom waitpid",
        "io": "open open_code",
        "_io": "open open_code",
        "_pickle": "load",
        "marshal": "load",
        "_asyncio": "_get_running_loop get_running_loop",
        "_uuid": "generate_time_safe",
        "_socket": "getaddrinfo gethostbyname gethostbyname_ex gethostname getnameinfo",
        "select": "poll select",
        "resource": "getrusage",
    },
    "thread": {"_thread": "start_joinable_thread start_new_thread"},
    "print": {"builtins": "print"},
}

# Methods in C, by module and class.
_METHODS: dict[str, dict[str, str]] = {
    "_io": {
        "_IOBase": "close detach read read1 readall readinto readinto1 readline readlines seek "
        "truncate write writelines",
    },
    "_queue": {"SimpleQueue": "get get_nowait put put_nowait"},
    "_socket": {
        "socket": "accept bind close connect connect_ex detach listen recv recv_into recvfrom "
        "recvfrom_into recvmsg recvmsg_into send sendall sendmsg sendto setsockopt shutdown "
        "_accept",
    },
    "_ssl": {"_SSLSocket": "do_handshake read shutdown write"},
    "sqlite3": {
        "Connection": "backup close commit create_function execute executemany executescript "
        "rollback",
        "Cursor": "execute executemany executescript fetchall fetchmany fetchone",
    },
    "mmap": {"mmap": "flush move read read_byte readline resize seek write write_byte"},
    "_csv": {"Writer": "writerow writerows"},
    "_pickle": {"Pickler": "dump", "Unpickler": "load"},
    "torch._C": {
        "Generator": "graphsafe_set_state initial_seed manual_seed seed set_offset set_state"
    },
    "numpy": {"ndarray": "dump tofile"},
    "select": {"epoll": "modify poll register unregister", "poll": "poll"},
}
# Data in these stays in memory: they count only if they existed before the run.
_IN_MEMORY = (io.StringIO, io.BytesIO, queue.SimpleQueue, torch._C.Generator)
# These methods of a generator give another number in each process.
_OUTSIDE = frozenset(("initial_seed", "seed"))

# Functions in Python, by rule and module.
_PYTHON: dict[str, dict[str, str]] = {
    _WRITE: {
        "asyncio.base_events": "BaseEventLoop.call_soon BaseEventLoop.call_soon_threadsafe "
        "BaseEventLoop.run_in_executor",
        "concurrent.futures.process": "ProcessPoolExecutor.submit",
        "logging": "Filterer.addFilter Filterer.removeFilter Handler.setLevel Logger.addHandler "
        "Logger.removeHandler Logger.setLevel basicConfig captureWarnings disable",
        "multiprocessing.connection": "_ConnectionBase.recv _ConnectionBase.recv_bytes "
        "_ConnectionBase.send _ConnectionBase.send_bytes",
        "multiprocessing.process": "BaseProcess.start",
        "pickle": "_Pickler.dump _Unpickler.load",
        "subprocess": "Popen.__init__ Popen.communicate Popen.send_signal",
        "threading": "Condition.wait",  # for what nobody does while a run of ours goes on
        "warnings": "filterwarnings resetwarnings simplefilter",
        "weakref": "finalize.__init__ finalize.detach",
        "torch.jit._serialization": "load save",
        "torch.serialization": "load save",
    },
    _READ: {  # the frames of the callers, and other threads
        "inspect": "getouterframes stack",
        "threading": "active_count enumerate",
        "traceback": "extract_stack format_stack print_stack",
    },
    "thread": {
        "concurrent.futures.thread": "ThreadPoolExecutor.submit",
        "threading": "Thread.start",
    },
}
# Python methods that count only on objects that existed before the run.
_PYTHON_METHODS = {
    "asyncio.locks": "Event.clear Event.set",
    "asyncio.queues": "Queue.get_nowait Queue.put_nowait",
    "concurrent.futures._base": "Future.set_exception Future.set_result",
    "multiprocessing.queues": "Queue.get Queue.get_nowait Queue.put Queue.put_nowait "
    "SimpleQueue.get SimpleQueue.put",
    "queue": "Queue.get Queue.get_nowait Queue.put Queue.put_nowait Queue.task_done",
    "threading": "Condition.notify Event.clear Event.set",
}

# These read files to find code.
_LOADERS = (
    "<frozen importlib",
    "<frozen zipimport",
    f"{Path(importlib.__file__).parent}/",
    *(str(module.__file__) for module in (inspect, linecache, tokenize)),
)
_OURS = f"{Path(__file__).parents[1]}/"
_INTERNAL = (
    _OURS,
    "<gfxgraph>",
    f"{Path(torch.__file__).parent}/",
    f"{sysconfig.get_path('purelib')}/triton/",
    f"{sysconfig.get_path('platlib')}/triton/",
)


# Code of torch that calls what it is given.
_CALLING = frozenset(
    str(Path(torch.__file__).parent / part)
    for part in ("utils/_pytree.py", "utils/_cxx_pytree.py", "nn/modules/module.py")
)


@contextmanager
def side_effects(on_effect: OnEffect, *, perform: bool = False) -> Iterator[None]:
    """Observe the effects of this thread outside of torch.

    Args:
        on_effect: called before each effect. If it returns ``True``, the effect is left out; where
            that is impossible, the run ends with :class:`Unexpected`.
        perform: let effects happen, whatever ``on_effect`` returns: it is the user's own run.

    Raises:
        CaptureError: a profiler is on that cannot be put back.
    """
    caller = sys._getframe(1)
    while caller.f_code.co_filename == contextlib.__file__ and caller.f_back is not None:
        caller = caller.f_back
    effects = _SideEffects(on_effect, perform, caller)
    with ExitStack() as stack:
        stack.callback(effects.forget)
        for name, rule in (("stdout", "print"), ("stderr", _WRITE)):
            if getattr(sys, name) is not None:
                stream = _Stream(
                    effects, rule, "print()" if rule == "print" else "sys.stderr.write()"
                )
                claim = stack.enter_context(substitute(sys, name, stream))
                stream.original = claim.original
        effects.stdout = sys.stdout
        stack.enter_context(intercept(logging.Logger, "callHandlers", effects.log))
        stack.enter_context(intercept(warnings, "_showwarnmsg_impl", effects.warn))
        stack.enter_context(effects.collections())  # before anything is observed
        effects.listening = stack.enter_context(observing(effects))
        _local.observed.append(effects)
        stack.callback(_local.observed.remove, effects)
        yield


@contextmanager
def no_side_effects(let_pass: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """End a run of ours before it does something outside of torch, such as writing a file.

    Args:
        let_pass: whether what happens now belongs to a point at which the host takes over.

    Raises:
        CaptureError: it is about to.
    """
    met: list[tuple[str, str, Source]] = []
    handled = sys.exc_info()[1]

    def tell(rule: str, what: str) -> bool:
        if not let_pass():
            met.append((rule, what, users_line()))
        return not let_pass()

    try:
        with side_effects(tell):
            yield
    except (Exception, Unexpected) as error:
        if not met or interrupt_in(error):
            raise
        let_go(error, handled)
    if met:  # outside of the handler: nobody is to see that error
        raise explain(*met[0])


class Acting:
    """Which functions in C have an effect, or read what is outside, of what is loaded now."""

    def __init__(self) -> None:
        self._functions, self._methods = _functions(), _methods()

    def meet(self, function: Any, prints: bool = False) -> None:
        """C code is about to be given ``function``, which it may call unseen.

        Args:
            function: anything.
            prints: a ``print`` that it is may name a file. Otherwise its stream is seen.

        Raises:
            Unexpected: that is an effect, which this thread must not have now.
        """
        if issubclass(type(function), BuiltinFunctionType):
            rule = self._functions.get(function)
            if rule is None:
                self.meet_method(function.__self__, function.__name__)
            elif rule != "print" or prints:
                _about_to(rule, _name_of(function.__name__, function.__self__))

    def meet_method(self, owner: Any, name: str) -> None:
        """C code is about to call that method; as :meth:`meet`."""
        if not _is_in_memory(owner, name) and name in _names_in(type(owner), self._methods):
            _about_to(_rule_of(owner), _name_of(name, owner))


def _is_in_memory(owner: Any, name: str) -> bool:
    return isinstance(owner, _IN_MEMORY) and name not in _OUTSIDE


def _rule_of(owner: Any) -> str:
    return "seed" if isinstance(owner, torch._C.Generator) else _WRITE


class _Local(threading.local):
    def __init__(self) -> None:
        self.observed: list[_SideEffects] = []


_local = _Local()


def _forget() -> None:
    """Nobody looks on in a child of ``fork()``."""
    gc.callbacks[:] = [c for c in gc.callbacks if getattr(c, "__module__", "") != __name__]


in_child(_forget)


def _about_to(rule: str, what: str) -> None:
    for effects in _local.observed[-1:]:
        effects.stop(rule, what, _caller())


def _caller() -> FrameType | None:
    """The innermost frame of this thread that is not gfxgraph's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return frame


class _SideEffects:
    def __init__(self, on_effect: OnEffect, perform: bool, outside: FrameType | None) -> None:
        self.perform = perform
        self.listening: Listening | None = None
        self._on_effect = on_effect
        self._outside = outside
        self._functions, self._methods, self.codes = _functions(), _methods(), _codes()
        self._names: dict[type, frozenset[str]] = {}
        self._made_inside: dict[int, Any] = {}
        #: How deep in what is not the function's: finalizers, our own log.
        self._aside = 0
        # Inside of `warnings.catch_warnings` there is another list: filters set there do not last.
        self._filters = vars(warnings)["filters"]
        #: What stands for the standard output.
        self.stdout: Any = None

    @contextmanager
    def collections(self) -> Iterator[None]:
        """Note when the garbage collector runs: its calls are not the function's."""
        thread = threading.get_ident()

        def begin(phase: str, info: object) -> None:
            if phase == "start" and threading.get_ident() == thread:
                self._aside += 1

        def end(phase: str, info: object) -> None:
            if phase == "stop" and threading.get_ident() == thread:
                self._aside = max(0, self._aside - 1)

        gc.callbacks.insert(0, begin)  # others in the list are called in between
        gc.callbacks.append(end)
        try:
            yield
        finally:
            for callback in (begin, end):
                with suppress(ValueError):  # somebody has put back a list of before
                    gc.callbacks.remove(callback)

    def forget(self) -> None:
        """Let go of frames, which hold tensors. Other threads may still ask what matters."""
        self._outside, self._on_effect, self.listening = None, lambda rule, what: False, None
        self._made_inside.clear()

    # For `observing`.

    def looks_at(self, code: CodeType) -> bool:
        """Not at gfxgraph and torch, and at what loads code: their calls are harmless."""
        return _kind(code) in ("users", "other")

    def matters(self, function: Any, owner: Any) -> bool:
        """Whether a function in C may have an effect."""
        if self._aside:
            return False
        if isinstance(function, BuiltinFunctionType) and function in self._functions:
            return True
        names = self._names.get(type(owner))
        if names is None:
            names = self._names[type(owner)] = _names_in(type(owner), self._methods)
        return bool(names) and function.__name__ in names

    def calls(self, frame: FrameType, function: Any, owner: Any) -> None:
        """A call of a function in C that may have an effect."""
        rule = self._functions.get(function)
        if rule is not None:
            ends_here = (
                rule == "print"
                and not _may_name_a_file(frame.f_code)
                and sys.stdout is self.stdout  # and not what redirect_stdout() has put there
            )
            of_a_record = rule == _READ and frame.f_code.co_filename == logging.__file__
            if not (ends_here or of_a_record):
                self.stop(rule, _name_of(function.__name__, owner), frame, frame)
        elif not (_is_in_memory(owner, function.__name__) and self._is_made_inside(owner, frame)):
            self.stop(_rule_of(owner), _name_of(function.__name__, owner), frame, frame)

    def begins(self, frame: FrameType) -> None:
        """A call of a function in Python that may have an effect."""
        if self._aside:
            return
        rule, name, of_objects = self.codes[frame.f_code]
        caller = frame.f_back
        if name.startswith("warnings.") and vars(warnings)["filters"] is not self._filters:
            return
        if of_objects and (
            # If one library method calls another, the first one counts.
            (caller is not None and _kind(caller.f_code) == "other")
            or self._is_made_inside(frame.f_locals.get("self"), frame)
        ):
            return
        self.stop(rule, name, caller, frame)

    def stop(
        self, rule: str, what: str, caller: FrameType | None, frame: FrameType | None = None
    ) -> None:
        """End the run, if it must not make this call; ``frame``: in which the hook sees it."""
        if not _is_harmless(caller) and self._on_effect(rule, what) and not self.perform:
            if frame is not None and self.listening is not None:
                # The user's `finally` blocks must not have effects either.
                self.listening.go_on_after_errors(frame, self._outside)
            raise Unexpected(what)

    def _is_made_inside(self, item: Any, frame: FrameType) -> bool:
        """Whether only the running functions hold ``item``, so that it ends with them."""
        if id(item) in self._made_inside:
            return True
        inside: set[int] = set()
        running: FrameType | None = frame
        while running is not None and running is not self._outside:
            inside |= {id(running), id(running.f_locals)}
            running = running.f_back
        holders = gc.get_referrers(item)
        # Apart from them, only its bound method during the call.
        bound = tuple(h for h in holders if issubclass(type(h), BuiltinFunctionType))
        # From Python 3.13 on, the tuple behind `*bound` is a referrer like any other.
        inside |= {id(holders), id(bound), *map(id, bound)}
        others = gc.get_referrers(*bound) if bound else []
        for holder in itertools.chain(holders, others):
            if id(holder) not in inside and not isinstance(holder, FrameType):
                return False
        self._made_inside[id(item)] = item
        return True

    # Effects that end in a function that we can replace.

    def met(self, rule: str, what: str) -> None:
        """An effect that can be left out."""
        if not (self._aside or _is_harmless(_caller())):
            self._on_effect(rule, what)

    def log(self, original: Any, logger: logging.Logger, record: logging.LogRecord) -> None:
        """A record that a logger has let pass."""
        ours = record.name.partition(".")[0] == __name__.partition(".")[0]
        if not ours and _somebody_takes(logger, record):
            self.met(_WRITE, f"a record of the logger {record.name!r}")
        if ours:
            # What handlers do with it, such as writing to a file, is not the function's.
            self._aside += 1
            try:
                original(logger, record)
            finally:
                self._aside -= 1
        elif self.perform:
            original(logger, record)

    def warn(self, original: Any, message: warnings.WarningMessage) -> None:
        """A warning that the filters have let pass."""
        self.met(_WRITE, f"warnings.warn(), {message.category.__name__}")
        if self.perform:
            original(message)
        else:
            _as_if_not_shown(message)


class _Stream:
    """Stands in for a standard stream."""

    def __init__(self, effects: _SideEffects, rule: str, what: str) -> None:
        self.original: Any = None
        self._effects, self._rule, self._what = effects, rule, what
        self._within_a_line = False

    def write(self, text: str) -> Any:
        if text.strip() and not self._within_a_line:
            self._effects.met(self._rule, self._what)
        self._within_a_line = not text.endswith("\n")
        return self.original.write(text) if self._effects.perform else len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)


def _functions() -> dict[Any, str]:
    """Functions in C of what is loaded, and their rules."""
    clocks = (datetime.now, datetime.utcnow, datetime.today, date.today)
    found: dict[Any, str] = dict.fromkeys(clocks, _READ)
    for rule, modules in _FUNCTIONS.items():
        for module, names in modules.items():
            held = vars(sys.modules[module]) if module in sys.modules else {}
            found.update((held[name], rule) for name in names.split() if name in held)
    return found


def _methods() -> dict[type, str]:
    """Classes of what is loaded, and the names of their methods that matter."""
    found = {}
    for module, classes in _METHODS.items():
        for name, methods in classes.items():
            cls = getattr(sys.modules.get(module), name, None)
            if isinstance(cls, type):
                found[cls] = methods
    return found


def _names_in(cls: type, methods: dict[type, str]) -> frozenset[str]:
    """The methods of a class that matter, inherited ones too."""
    found = (methods.get(base, "").split() for base in cls.__mro__)
    return frozenset(name for names in found for name in names)


def _codes() -> dict[CodeType, tuple[str, str, bool]]:
    """Code of functions in Python of what is loaded: rule, name, and whether of objects."""
    found = {}
    tables = [(rule, modules, False) for rule, modules in _PYTHON.items()]
    for rule, modules, of_objects in (*tables, (_WRITE, _PYTHON_METHODS, True)):
        for module, paths in modules.items():
            for path in paths.split() if module in sys.modules else ():
                function: Any = sys.modules[module]
                for name in path.split("."):
                    function = getattr(function, name, None)
                code = getattr(function, "__code__", None)
                if code is not None:
                    found[code] = rule, f"{module}.{path}()", of_objects
    return found


def _name_of(name: str, owner: Any) -> str:
    if isinstance(owner, type(sys)):
        module = {"posix": "os", "nt": "os"}.get(owner.__name__, owner.__name__.lstrip("_"))
        return f"{name}()" if module in ("builtins", "io") else f"{module}.{name}()"
    cls = owner if isinstance(owner, type) else type(owner)
    return f"{cls.__module__.lstrip('_')}.{cls.__qualname__}.{name}()"


@per_code
def _kind(code: CodeType) -> Literal["loader", "internal", "users", "other"]:
    file = code.co_filename
    if file.startswith(_LOADERS):
        return "loader"
    if is_the_users(code):
        return "internal" if file.startswith(_INTERNAL[2:]) else "users"
    return "internal" if file.startswith(_INTERNAL) and file not in _CALLING else "other"


def _is_harmless(frame: FrameType | None) -> bool:
    """Whether torch or gfxgraph makes the call, or Python loads code."""
    seen = ""
    while frame is not None:
        kind = _kind(frame.f_code)
        if kind == "loader":
            return True
        if kind == "internal":
            return not seen
        if kind == "users":
            seen = kind
        frame = frame.f_back
    return not seen


@per_code
def _may_name_a_file(code: CodeType) -> bool:
    """Whether a ``print`` in this code may name a file; otherwise it ends in ``sys.stdout``."""
    names = any(isinstance(const, tuple) and "file" in const for const in code.co_consts)
    return names or dis.opmap["CALL_FUNCTION_EX"] in code.co_code[::2]


def _somebody_takes(logger: logging.Logger, record: logging.LogRecord) -> bool:
    """Whether a handler would take a record, asked as in ``callHandlers``."""
    handlers: list[logging.Handler] = []
    at: logging.Logger | None = logger
    while at is not None:
        handlers += at.handlers
        at = at.parent if at.propagate else None
    if not handlers:
        last = logging.lastResort
        return last is not None and record.levelno >= last.level
    awake = [h for h in handlers if not isinstance(h, logging.NullHandler)]
    return any(record.levelno >= handler.level for handler in awake)


def _as_if_not_shown(message: Any) -> None:
    """Undo the mark "shown once" of a warning that was left out."""
    text, category = str(message.message), message.category
    frame: FrameType | None = sys._getframe(1)
    shown: dict[Any, Any] = vars(warnings).get("onceregistry") or {}
    shown.pop((text, category), None)
    while frame is not None:
        registry: Any = frame.f_globals.get("__warningregistry__")
        for line in (message.lineno, 0) if registry else ():
            registry.pop((text, category, line), None)
        frame = frame.f_back

"""The catalogue of hazard rules: constructs of unmodified code, and what a graph does with them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

__all__ = ["RULES", "Effect", "Rule"]

Effect = Literal["captures", "folds", "branches", "eager"]
"""What happens to a function that does it, from the best to the worst."""


@dataclass(frozen=True)
class Rule:
    """A rule of the catalogue.

    Attributes:
        id: its name, in reports, SARIF and the docs.
        title: what the code does, in a few words.
        effect: what happens to the function if the data does not depend on the inputs.
        why: why it matters in a graph.
        remedy: the code to write instead.
        bad: source of a module with a function ``f`` that does it, given a float tensor of shape
            (4, 8) on the device.
        good: source of a module with an ``f`` for the same purpose that does not do it.
        if_tainted: what happens to it if the data does depend on them. Default: the same.
    """

    id: str
    title: str
    effect: Effect
    why: str
    remedy: str
    bad: str
    good: str
    if_tainted: Effect | None = None

    @property
    def tainted(self) -> Effect:
        """The effect on the function if the data depends on the inputs."""
        return self.if_tainted or self.effect


# Sources get their imports of gfxgraph and torch below, unless they begin with an import.
_CATALOGUE = (
    Rule(
        "host-read",
        "the host reads a value from the device",
        "folds",
        "The host has to wait for the device, which a capture forbids. Python would also act on "
        "the value only once, at capture.",
        "Keep the value in a tensor: torch.where(condition, a, b) for a branch, a 0-dim tensor "
        "for a factor.",
        bad="""\
def f(x):
    confidence = x.softmax(-1).amax()
    return x * 0.5 if confidence < 0.9 else x
""",
        good="""\
def f(x):
    confidence = x.softmax(-1).amax()
    return torch.where(confidence < 0.9, x * 0.5, x)
""",
        if_tainted="branches",
    ),
    Rule(
        "data-dependent-shape",
        "the shape of a result depends on data",
        "folds",
        "A graph fixes memory and launch sizes at capture. To learn the shape, the host has to "
        "read the device.",
        "Use a form of fixed shape: torch.where or masked_fill for a mask, topk for nonzero, "
        "repeat_interleave(..., output_size=n).",
        bad="""\
def f(x):
    valid = x > 0
    return x[valid].mean()
""",
        good="""\
def f(x):
    valid = x > 0
    return x.where(valid, 0).sum() / valid.sum()
""",
        if_tainted="branches",
    ),
    Rule(
        "hidden-sync",
        "an operator reads the device internally",
        "folds",
        "The operator waits for the device (for an error code, a size, a search on the host), "
        "which a capture forbids.",
        "Use a form that does not wait, such as torch.linalg.inv_ex, solve_ex or cholesky_ex, or "
        "call it outside of the graphed function.",
        bad="""\
def f(x):
    covariance = x @ x.mT + torch.eye(4, device=x.device)
    return torch.linalg.solve(covariance, x)
""",
        good="""\
def f(x):
    covariance = x @ x.mT + torch.eye(4, device=x.device)
    return torch.linalg.solve_ex(covariance, x).result
""",
        if_tainted="branches",
    ),
    Rule(
        "host-constant",
        "host data is copied to the device",
        "folds",
        "A capture forbids copies from pageable memory: each replay would read that memory again, "
        "whatever it holds by then.",
        "Create the tensor once, outside of the function (register_buffer), or on the device: "
        "torch.full, torch.zeros, torch.arange(..., device=x.device).",
        bad="""\
def f(x):
    times = torch.tensor([0.0, 0.25, 0.5, 0.75], device=x.device)
    return x + times[:, None]
""",
        good="""\
def f(x):
    times = torch.arange(4, device=x.device) / 4
    return x + times[:, None]
""",
        if_tainted="branches",
    ),
    Rule(
        "host-compute",
        "the host computes with device data",
        "branches",
        "A graph holds device work only. An operation on a CPU tensor runs once, at capture.",
        "Keep the tensor on the device.",
        bad="""\
def f(x):
    logits = x.cpu()
    return logits.argmax(-1).to(x.device)
""",
        good="""\
def f(x):
    return x.argmax(-1)
""",
    ),
    Rule(
        "synchronize",
        "the host waits for the device",
        "folds",
        "A capture forbids it, and has nothing to wait for: it records work without running it. "
        "The graph leaves the wait out.",
        "Remove it. Where timing needs it, synchronize after the call.",
        bad="""\
def f(x):
    action = x.tanh()
    torch.cuda.synchronize()
    return action
""",
        good="""\
def f(x):  # the caller synchronizes
    return x.tanh()
""",
    ),
    Rule(
        "query",
        "the host queries the device",
        "eager",
        "A capture forbids it, and each replay would repeat the answer of the capture.",
        "Query outside of the function, or time the whole call.",
        bad="""\
def f(x):
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    y = x.tanh()
    end.record()
    return y, start.elapsed_time(end)
""",
        good="""\
def f(x):  # the caller times the call
    return x.tanh()
""",
    ),
    Rule(
        "seed",
        "the state of a random generator is set or read",
        "branches",
        "The host sets and reads the state. torch.manual_seed() and its like do so between two "
        "graphs, at each call. With a method of a generator that is kept, such as "
        "generator.manual_seed(), the function runs eagerly.",
        "Seed before the call: torch.manual_seed(seed); out = fn(x).",
        bad="""\
def f(x):
    torch.manual_seed(0)
    return x + 0.1 * torch.randn_like(x)
""",
        good="""\
def f(x):  # the caller seeds
    return x + 0.1 * torch.randn_like(x)
""",
    ),
    Rule(
        "generator",
        "random numbers come from a generator that the call creates",
        "folds",
        "A capture refuses a generator that was not registered before. A new generator has the "
        "same seed in every call, so its numbers are constants: gfxgraph folds them into the "
        "graph.",
        "Draw from the default generator, or create one outside of the function and keep it.",
        bad="""\
def f(x):
    generator = torch.Generator(x.device)
    return x + torch.randn(x.shape, generator=generator, device=x.device)
""",
        good="""\
def f(x):
    return x + torch.randn_like(x)
""",
    ),
    Rule(
        "capture",
        "the function captures or replays a graph of its own",
        "eager",
        "A capture cannot contain the capture or the replay of another graph.",
        "Remove the inner graph: its work becomes part of ours.",
        bad="""\
def f(x):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x.tanh()
    graph.replay()
    return y
""",
        good="""\
def f(x):
    return x.tanh()
""",
    ),
    Rule(
        "default-stream",
        "work runs on the default stream",
        "eager",
        "A capture does not see work on the default stream. That work runs once, at capture, and "
        "is silently missing from the graph.",
        "Remove torch.cuda.stream(torch.cuda.default_stream()); the current stream is right.",
        bad="""\
def f(x):
    with torch.cuda.stream(torch.cuda.default_stream()):
        return x.tanh()
""",
        good="""\
def f(x):
    return x.tanh()
""",
    ),
    Rule(
        "side-stream",
        "a side stream is not forked from the current stream, or not joined to it",
        "eager",
        "A capture includes a side stream only after it waits for the capturing stream, and every "
        "side stream has to be joined before the capture ends.",
        "Call side.wait_stream(torch.cuda.current_stream()) before the work, and "
        "torch.cuda.current_stream().wait_stream(side) after it.",
        bad="""\
def f(x):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        image = x.relu()
    return image + x.tanh()
""",
        good="""\
def f(x):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        image = x.relu()
    torch.cuda.current_stream().wait_stream(side)
    return image + x.tanh()
""",
    ),
    Rule(
        "thread",
        "work runs on another thread",
        "eager",
        "A capture records the work of one thread. Work of other threads runs once, at capture.",
        "Run the work on the calling thread, or outside of the function.",
        bad="""\
import threading

def f(x):
    found = []
    worker = threading.Thread(target=lambda: found.append(x.tanh()))
    worker.start()
    worker.join()
    return found[0]
""",
        good="""\
def f(x):
    return x.tanh()
""",
    ),
    Rule(
        "print",
        "the function prints",
        "eager",
        "A replay runs no Python code, so it prints nothing.",
        "Remove the print, or print the result after the call.",
        bad="""\
def f(x):
    action = x.tanh()
    print(action.shape)
    return action
""",
        good="""\
def f(x):  # the caller prints
    return x.tanh()
""",
    ),
    Rule(
        "side-effect",
        "the function writes something outside of torch",
        "eager",
        "A replay runs no Python code: a file, a log, a queue, a socket or a database would get "
        "the data of the first call, and nothing after that.",
        "Write after the call, or in a function marked @gfxgraph.no_graph, which runs between two "
        "graphs at each call.",
        bad="""\
import queue

actions = queue.Queue()

def f(x):
    action = x.tanh()
    actions.put(action)
    return action
""",
        good="""\
def f(x):  # the caller puts what is returned on the queue
    return x.tanh()
""",
    ),
    Rule(
        "outside-read",
        "the function reads a clock, a file or the system",
        "eager",
        "A replay runs no Python code: it would use the time, the file or the answer of the first "
        "call for ever.",
        "Read it outside of the function, and pass the value as an argument.",
        bad="""\
import time

def f(x):
    return x * (time.time() % 1)
""",
        good="""\
def f(x, phase=0.5):  # the caller passes time.time() % 1 in a tensor
    return x * phase
""",
    ),
    Rule(
        "hidden-state",
        "the function reads what an object keeps in C, where no change of it can be seen",
        "eager",
        "A graph is replayed only while all that it read in Python is unchanged. Here nobody can "
        "ask whether it is.",
        "Read it outside of the function, and pass the value as an argument.",
        bad="""\
import zlib

packer = zlib.compressobj()

def f(x):
    return x * len(packer.copy().flush())
""",
        good="""\
def f(x, size=8.0):  # the caller passes len(packer.copy().flush()) in a tensor
    return x * size
""",
    ),
    Rule(
        "stored-tensor",
        "each call binds an attribute, a global or an item of a container to another tensor",
        "captures",
        "A replay runs no Python code, so graphed() stores a copy of the tensor there after each "
        "replay; what was there before is an input of the graph. A capture by hand stores nothing.",
        "Keep the state in one tensor and update it in place (copy_, add_): that copies less.",
        bad="""\
state = torch.zeros(4, 8, device=gfxgraph.device_type())

def f(x):
    global state
    state = state * 0.5 + x
    return state * 2
""",
        good="""\
state = torch.zeros(4, 8, device=gfxgraph.device_type())

def f(x):
    state.mul_(0.5).add_(x)
    return state * 2
""",
    ),
    Rule(
        "stored-counter",
        "each call adds a constant to a number in Python that it uses for nothing else",
        "captures",
        "A replay runs no Python code, so graphed() advances the number after each replay. A "
        "capture by hand does not: there it stays as it was at capture.",
        "Nothing with graphed(). For a capture by hand, keep the number in a tensor: "
        "self.calls.add_(1).",
        bad="""\
calls = 0

def f(x):
    global calls
    calls += 1
    return x * 2
""",
        good="""\
calls = torch.zeros((), device=gfxgraph.device_type())

def f(x):
    calls.add_(1)
    return x * 2
""",
    ),
    Rule(
        "stored-value",
        "each call binds an attribute, a global or an item of a container to a plain value",
        "captures",
        "A replay runs no Python code, so graphed() stores the value there after each replay. If "
        "the call also reads the place, each value has a graph of its own. A capture by hand "
        "stores nothing.",
        "Nothing with graphed(). For a capture by hand, return the value instead.",
        bad="""\
size = []

def f(x):
    global size
    size = [*x.shape]
    return x * 2
""",
        good="""\
def f(x):
    return x * 2, x.shape
""",
    ),
    Rule(
        "python-state",
        "each call changes a number or a container in Python",
        "eager",
        "A replay runs no Python code: the value would stay as it was at capture. graphed() stores "
        "what it can (numbers that only count, values that no call reads or that come again, "
        "tensors in containers of one length), and runs the rest eagerly.",
        "Keep the state in a tensor and update it in place: self.position.add_(1).",
        bad="""\
step = 0

def f(x):
    global step
    step += 1
    return x * 0.9**step
""",
        good="""\
step = torch.zeros((), device=gfxgraph.device_type())

def f(x):
    step.add_(1)
    return x * 0.9**step
""",
    ),
    Rule(
        "no-work",
        "the call gives the device no work",
        "eager",
        "A graph would have nothing to launch. The call takes its result from Python, such as the "
        "next action of a queue.",
        "Graph the function that computes what the queue holds, in place of this one.",
        bad="""\
from collections import deque

actions = deque()

def f(x):
    if not actions:
        actions.extend(x.tanh().repeat(16, 1))
    return actions.popleft()
""",
        good="""\
def f(x):
    return x.tanh().repeat(16, 1)
""",
    ),
    Rule(
        "python-random",
        "numbers come from Python's or NumPy's random module",
        "eager",
        "A replay runs no Python code: every replay would use the numbers of the capture.",
        "Use torch.rand on the device, or draw outside of the function and pass the numbers in a "
        "tensor.",
        bad="""\
import random

def f(x):
    return x * random.uniform(0.9, 1.1)
""",
        good="""\
def f(x):
    return x * (0.9 + 0.2 * torch.rand((), device=x.device))
""",
    ),
    Rule(
        "torchscript",
        "a TorchScript module is called",
        "eager",
        "Its attributes live in C++. gfxgraph cannot see when a call or a caller rebinds them, so "
        "a replay might use old ones.",
        "Graph the module that it was made from. Scripted and traced functions have no "
        "attributes, and are captured.",
        bad="""\
net = torch.jit.trace(torch.nn.Linear(8, 8), torch.zeros(4, 8))

def f(x):
    return net(x)
""",
        good="""\
net = torch.nn.Linear(8, 8)

def f(x):
    return net(x)
""",
    ),
    Rule(
        "unknown-kernel",
        "a kernel that torch does not know gets the address of a tensor",
        "captures",
        "It is captured if it runs on the current stream. Which tensors it writes is unknown, so "
        "those that it gets never count as constant.",
        "Wrap it with torch.library.triton_op or torch.library.custom_op(mutates_args=...).",
        bad="""\
import ctypes

launch = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda address: None)  # stands for a kernel

def f(x):
    y = x.relu()
    launch(y.data_ptr())
    return y
""",
        good="""\
import ctypes
import torch

launch = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda address: None)  # stands for a kernel

@torch.library.custom_op("mine::kernel", mutates_args=["y"])
def kernel(y: torch.Tensor) -> None:
    launch(y.data_ptr())

def f(x):
    y = x.relu()
    kernel(y)
    return y
""",
    ),
    Rule(
        "no-graph",
        "a function marked @gfxgraph.no_graph is called",
        "branches",
        "It runs eagerly between two graphs, at each call.",
        "Nothing to do, but return what it changes in Python: the graph after it sees nothing "
        "else. Each such call costs one more graph launch.",
        bad="""\
@gfxgraph.no_graph
def send(action): ...  # stands for a message to the robot

def f(x):
    action = x.tanh()
    send(action)
    return action
""",
        good="""\
def f(x):  # the caller sends
    return x.tanh()
""",
    ),
    Rule(
        "forbidden-call",
        "an operator cannot be captured",
        "branches",
        "On a GPU, captures fail at this operator.",
        "Use another operator, or call it outside of the graphed function.",
        bad="""\
def f(x):
    factors = x.view(2, 4, 4).tril()
    return torch.cholesky_inverse(factors)
""",
        good="""\
def f(x):
    factors = x.view(2, 4, 4).tril()
    one = torch.eye(4, device=x.device)
    inverse = torch.linalg.solve_triangular(factors, one, upper=False)
    return inverse.mT @ inverse
""",
    ),
    Rule(
        "autograd",
        "autograd records the call",
        "eager",
        "A replay records nothing for autograd.",
        "Call it under torch.no_grad() or torch.inference_mode().",
        bad="""\
critic = torch.nn.Linear(8, 1, device=gfxgraph.device_type())

@torch.enable_grad()
def f(x):
    return critic(x)
""",
        good="""\
critic = torch.nn.Linear(8, 1, device=gfxgraph.device_type())

@torch.no_grad()
def f(x):
    return critic(x)
""",
    ),
    Rule(
        "argument",
        "an argument cannot be a static input",
        "eager",
        "A graph reads its inputs from fixed addresses, and only plain dense tensors can be "
        "copied there.",
        "Pass dense torch.Tensor objects on one device. Each plain Python value makes a graph of "
        "its own.",
        bad="""\
def f(x):  # called with a sparse tensor: f(x.to_sparse())
    return x.to_dense().tanh()
""",
        good="""\
def f(x):
    return x.tanh()
""",
    ),
    Rule(
        "result",
        "the result holds an object that a replay cannot create",
        "eager",
        "A replay makes tensors, plain values, containers and objects of ordinary classes anew; "
        "any other object in the result would be the one of the capture.",
        "Return tensors, plain values that do not change, and containers or objects of them.",
        bad="""\
def f(x):
    return map(torch.relu, x)
""",
        good="""\
def f(x):
    return [torch.relu(row) for row in x]
""",
    ),
    Rule(
        "collective",
        "the function takes part in a collective of several ranks",
        "branches",
        "It runs eagerly between two graphs, once in each call, so that it does not matter to "
        "other ranks whether a graph answers here. Runs of ours send nothing: they repeat what "
        "came out in a call.",
        "Nothing to do where that becomes several graphs. Elsewhere leave the collective to the "
        "caller, and graph the code between two collectives.",
        bad="""\
import torch.distributed as dist

def f(x):  # in each of several ranks
    y = x.tanh()
    dist.all_reduce(y)
    return y
""",
        good="""\
def f(x):  # the caller reduces the result
    return x.tanh()
""",
    ),
    Rule(
        "raises",
        "the function raises an error",
        "eager",
        "There is nothing to capture.",
        "Correct the error; the function ran as in eager execution.",
        bad="""\
def f(x):
    return (x @ x).softmax(-1)
""",
        good="""\
def f(x):
    return (x @ x.mT).softmax(-1)
""",
    ),
    Rule(
        "external-write",
        "a tensor from outside is written in place",
        "captures",
        "Every replay writes it too, as every call does. The writes of warm-up and capture are "
        "undone.",
        "Nothing to do.",
        bad="""\
average = torch.zeros(4, 8, device=gfxgraph.device_type())

def f(x):
    return average.lerp_(x, 0.1).tanh()
""",
        good="""\
def f(x, average=0.0):  # the caller keeps the first result
    average = average + 0.1 * (x - average)
    return average, average.tanh()
""",
    ),
    Rule(
        "input-write",
        "an argument is written in place",
        "captures",
        "The replay writes the static input, which is copied back to the argument after each call.",
        "Return a new tensor to save the copy.",
        bad="""\
def f(x):
    return x.clamp_(-1, 1) * 0.5
""",
        good="""\
def f(x):
    return x.clamp(-1, 1) * 0.5
""",
    ),
    Rule(
        "nested-tensor",
        "a nested tensor is made",
        "eager",
        "The shape of a nested tensor is data, and the host reads it. nn.TransformerEncoder makes "
        "a nested tensor of its input if src_key_padding_mask shows padding.",
        "Keep padded tensors: nn.TransformerEncoder(enable_nested_tensor=False).",
        bad="""\
def f(x):
    mask = x.abs().sum(-1, keepdim=True).expand(4, 8) >= 0
    return torch._nested_tensor_from_mask(x.reshape(4, 8, 1), mask).to_padded_tensor(0.0)
""",
        good="""\
def f(x):
    return x.masked_fill(x.abs() < 0, 0.0)
""",
    ),
    Rule(
        "random",
        "random numbers are drawn",
        "captures",
        "Each replay draws new numbers from the generator, as each call does.",
        "Nothing to do.",
        bad="""\
def f(x):
    return torch.multinomial(x.softmax(-1), 1)
""",
        good="""\
def f(x):
    return x.argmax(-1, keepdim=True)
""",
    ),
)


def _with_imports(source: str) -> str:
    if source.startswith("import "):
        return source
    used = [name for name in ("gfxgraph", "torch") if re.search(rf"\b{name}\.", source)]
    imports = [f"import {name}\n" for name in used]
    return "".join((*imports, "\n", source) if imports else source)


RULES: dict[str, Rule] = {
    rule.id: replace(rule, bad=_with_imports(rule.bad), good=_with_imports(rule.good))
    for rule in _CATALOGUE
}
"""The catalogue, by rule id."""

"""The catalogue of hazard rules: constructs of unmodified code, and how a graph handles them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["RULES", "Effect", "Rule"]

Effect = Literal["captures", "folds", "branches", "eager"]
"""How a function ends up that does it, from the best to the worst."""


@dataclass(frozen=True)
class Rule:
    """A rule of the catalogue.

    Attributes:
        id: its name, in reports, SARIF and the docs.
        title: what the code does, in a few words.
        effect: what becomes of the function where the data does not depend on the inputs.
        tainted: what becomes of it where the data does depend on them.
        why: why it matters in a graph.
        remedy: the code to write instead.
        bad: source of a module with a function ``f`` that does it, given a float tensor of shape
            (4, 8) on the device.
        good: source of a module with an ``f`` that is there for the same and does not do it.
    """

    id: str
    title: str
    effect: Effect
    tainted: Effect
    why: str
    remedy: str
    bad: str
    good: str


_CATALOGUE = (
    Rule(
        "host-read",
        "a value of the device is read on the host",
        "folds",
        "branches",
        "The host waits for the device, which a capture forbids, and what Python does with the "
        "value is decided once, at capture.",
        "Keep the value in a tensor: torch.where(condition, a, b) for a branch, a 0-dim tensor "
        "for a factor.",
        bad="""\
def f(x):
    confidence = x.softmax(-1).amax()
    return x * 0.5 if confidence < 0.9 else x
""",
        good="""\
import torch

def f(x):
    confidence = x.softmax(-1).amax()
    return torch.where(confidence < 0.9, x * 0.5, x)
""",
    ),
    Rule(
        "data-dependent-shape",
        "the shape of a result depends on data",
        "folds",
        "branches",
        "Memory and launch sizes of a graph are fixed at capture; to learn the shape the host "
        "has to read the device.",
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
    ),
    Rule(
        "hidden-sync",
        "an operator reads the device inside",
        "folds",
        "branches",
        "The operator waits for the device (an error code, a size, a search on the host), which "
        "a capture forbids.",
        "Use a form that does not check or read, such as torch.linalg.inv_ex, solve_ex, "
        "cholesky_ex, or call it outside of the graphed function.",
        bad="""\
import torch

def f(x):
    covariance = x @ x.mT + torch.eye(4, device=x.device)
    return torch.linalg.solve(covariance, x)
""",
        good="""\
import torch

def f(x):
    covariance = x @ x.mT + torch.eye(4, device=x.device)
    return torch.linalg.solve_ex(covariance, x).result
""",
    ),
    Rule(
        "host-constant",
        "data of the host is copied to the device",
        "folds",
        "branches",
        "A capture forbids a copy from pageable memory: each replay would read that memory "
        "again, whatever is in it by then.",
        "Make the tensor once, outside of the function (register_buffer), or on the device: "
        "torch.full, torch.zeros, torch.arange(..., device=x.device).",
        bad="""\
import torch

def f(x):
    times = torch.tensor([0.0, 0.25, 0.5, 0.75], device=x.device)
    return x + times[:, None]
""",
        good="""\
import torch

def f(x):
    times = torch.arange(4, device=x.device) / 4
    return x + times[:, None]
""",
    ),
    Rule(
        "host-compute",
        "the host computes with data of the device",
        "branches",
        "branches",
        "A graph holds work of the device only; an operation on a CPU tensor runs once, at "
        "capture.",
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
        "folds",
        "A capture forbids it, and has nothing to wait for: it records the work and runs none of "
        "it. It is left out of the graph.",
        "Remove it from the function; synchronize after the call where timing needs it.",
        bad="""\
import torch

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
        "the host asks the device",
        "eager",
        "eager",
        "A capture forbids it, and the answer would be that of the capture.",
        "Ask outside of the function; time the whole call.",
        bad="""\
import torch

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
        "the state of a generator is set or read",
        "branches",
        "branches",
        "The state is set and read by the host: that is done between two graphs, at each call.",
        "Seed before the call: torch.manual_seed(seed); out = fn(x).",
        bad="""\
import torch

def f(x):
    torch.manual_seed(0)
    return x + 0.1 * torch.randn_like(x)
""",
        good="""\
import torch

def f(x):  # the caller seeds
    return x + 0.1 * torch.randn_like(x)
""",
    ),
    Rule(
        "generator",
        "random numbers come from a generator that is made in the call",
        "folds",
        "folds",
        "A capture refuses a generator that it did not know before. A new one has the same seed in "
        "each call, so its numbers are folded: each replay has those of the capture, as each call "
        "has.",
        "Draw from the default generator, or make one outside of the function and keep it on the "
        "object.",
        bad="""\
import torch

def f(x):
    generator = torch.Generator(x.device)
    return x + torch.randn(x.shape, generator=generator, device=x.device)
""",
        good="""\
import torch

def f(x):
    return x + torch.randn_like(x)
""",
    ),
    Rule(
        "capture",
        "the function captures or replays a graph of its own",
        "eager",
        "eager",
        "A graph cannot be captured or replayed while another one is captured.",
        "Leave the graph of its own out: what it holds becomes part of ours.",
        bad="""\
import torch

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
        "work is put on the default stream",
        "eager",
        "eager",
        "A capture does not see work on the default stream: it runs once, at capture, and is "
        "silently not in the graph.",
        "Leave out torch.cuda.stream(torch.cuda.default_stream()); the current stream is right.",
        bad="""\
import torch

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
        "eager",
        "A capture takes in a stream that waits for the capturing one, and has to end with all "
        "of them joined.",
        "side.wait_stream(torch.cuda.current_stream()) before the work, "
        "torch.cuda.current_stream().wait_stream(side) after it.",
        bad="""\
import torch

def f(x):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        image = x.relu()
    return image + x.tanh()
""",
        good="""\
import torch

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
        "work is done on another thread",
        "eager",
        "eager",
        "A capture records the work of one thread; what another computes is done once, at capture.",
        "Do the work on the calling thread, or outside of the function.",
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
        "eager",
        "A replay does not run Python, so it prints nothing.",
        "Remove the print, or print what the call returned.",
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
        "something outside of torch is written",
        "eager",
        "eager",
        "A replay does not run Python: a file, a log, a queue, a socket or a database would get "
        "what the first call wrote, and nothing of the others.",
        "Do it outside of the function with what the call returned, or in a function marked "
        "@gfxgraph.no_graph, which runs between two graphs at each call.",
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
        "a clock, a file or the system is read",
        "eager",
        "eager",
        "A replay does not run Python: the time, the file or the answer would be that of the first "
        "call for ever.",
        "Read it outside of the function, and pass what came out as an argument.",
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
        "python-state",
        "a Python attribute, global or container is changed in each call",
        "eager",
        "eager",
        "A replay does not run Python: the value stays what it was at capture.",
        "Keep the state in a tensor that is written in place: self.position.add_(1).",
        bad="""\
step = 0

def f(x):
    global step
    step += 1
    return x * 0.9**step
""",
        good="""\
import gfxgraph
import torch

step = torch.zeros((), device=gfxgraph.device_type())

def f(x):
    step.add_(1)
    return x * 0.9**step
""",
    ),
    Rule(
        "python-random",
        "numbers come from Python's or NumPy's random module",
        "eager",
        "eager",
        "A replay does not run Python: every replay would use the numbers of the capture.",
        "Use torch.rand on the device, or draw outside and pass the numbers in a tensor.",
        bad="""\
import random

def f(x):
    return x * random.uniform(0.9, 1.1)
""",
        good="""\
import torch

def f(x):
    return x * (0.9 + 0.2 * torch.rand((), device=x.device))
""",
    ),
    Rule(
        "torchscript",
        "a module of TorchScript is called",
        "eager",
        "eager",
        "Its attributes are in C++, where it may rebind them in a call, and where nobody sees that "
        "a caller does: a replay would go on with the old ones.",
        "Graph the module that it was made from. A scripted or traced function has no attributes, "
        "and is captured.",
        bad="""\
import torch

net = torch.jit.trace(torch.nn.Linear(8, 8), torch.zeros(4, 8))

def f(x):
    return net(x)
""",
        good="""\
import torch

net = torch.nn.Linear(8, 8)

def f(x):
    return net(x)
""",
    ),
    Rule(
        "unknown-kernel",
        "a kernel that torch does not know gets the address of a tensor",
        "captures",
        "captures",
        "It is captured if it runs on the current stream, but nobody can tell what it writes: "
        "such tensors are never taken for constant.",
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
        "branches",
        "It runs eagerly between two graphs, at each call.",
        "Nothing to do; each such call costs a launch of another graph.",
        bad="""\
import gfxgraph

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
        "branches",
        "On a GPU a capture was seen to fail at this operator.",
        "Use another operator, or call it outside of the graphed function.",
        bad="""\
import torch

def f(x):
    factors = x.view(2, 4, 4).tril()
    return torch.cholesky_inverse(factors)
""",
        good="""\
import torch

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
        "eager",
        "A replay records nothing for autograd.",
        "Call it under torch.no_grad() or torch.inference_mode().",
        bad="""\
import gfxgraph
import torch

critic = torch.nn.Linear(8, 1, device=gfxgraph.device_type())

@torch.enable_grad()
def f(x):
    return critic(x)
""",
        good="""\
import gfxgraph
import torch

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
        "eager",
        "A graph reads its inputs from fixed addresses; what is no plain dense tensor cannot be "
        "copied there.",
        "Pass dense torch.Tensor objects on one device; each plain value makes a graph of its own.",
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
        "the result holds something that a replay cannot make anew",
        "eager",
        "eager",
        "A replay gives tensors; an object that Python made in the call would be that of the "
        "capture.",
        "Return tensors, plain values that stay the same, and containers of them.",
        bad="""\
import torch

def f(x):
    return torch.distributions.Normal(x, 0.1)
""",
        good="""\
def f(x):
    return {"mean": x, "std": 0.1}
""",
    ),
    Rule(
        "collective",
        "a collective is issued to other ranks",
        "eager",
        "eager",
        "Other ranks cannot be asked yet whether they capture it too. Where one of them cannot, "
        "the collectives of warm-up and capture would wait for it, or pair up with the wrong ones. "
        "So the function runs eagerly where its group has more than one rank.",
        "Leave the collective to the caller, and graph what lies between two of them.",
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
        "eager",
        "There is nothing to capture.",
        "Correct the error; the function was run as it would be run eagerly.",
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
        "captures",
        "Every replay writes it too, as every call does; warm-up and capture are taken back.",
        "Nothing to do.",
        bad="""\
import gfxgraph
import torch

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
        "captures",
        "The replay writes the static input, which is copied back after each call.",
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
        "eager",
        "The shape of a nested tensor is data, and the host reads it. nn.TransformerEncoder makes "
        "one of its input where src_key_padding_mask says that there is padding.",
        "Keep padded tensors: nn.TransformerEncoder(enable_nested_tensor=False).",
        bad="""\
import torch

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
        "captures",
        "Each replay draws new numbers from the generator, as each call does.",
        "Nothing to do.",
        bad="""\
import torch

def f(x):
    return torch.multinomial(x.softmax(-1), 1)
""",
        good="""\
def f(x):
    return x.argmax(-1, keepdim=True)
""",
    ),
)

RULES: dict[str, Rule] = {rule.id: rule for rule in _CATALOGUE}
"""The catalogue, by rule id."""

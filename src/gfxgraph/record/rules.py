"""What a graph does with the things that unmodified code does: the catalogue of hazard rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["RULES", "Effect", "Rule"]

Effect = Literal["captures", "folds", "branches", "eager"]
"""What becomes of a function that does it, from the best to the worst."""


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
        bad: source of a function ``f`` that triggers it, for ``x``, a float tensor of shape
            (4, 8) on the device.
        good: source of an ``f`` that does the same and does not.
    """

    id: str
    title: str
    effect: Effect
    tainted: Effect
    why: str
    remedy: str
    bad: str = ""
    good: str = ""


_CATALOGUE = (
    Rule(
        "host-read",
        "a value of the device is read on the host",
        "folds",
        "branches",
        "The host waits for the device, which a capture forbids, and what Python does with the "
        "value is decided once, at capture.",
        "Keep the value in a tensor: torch.where(condition, a, b) for a branch, a 0-dim tensor for "
        "a factor.",
    ),
    Rule(
        "data-dependent-shape",
        "the shape of a result depends on data",
        "folds",
        "branches",
        "Memory and launch sizes of a graph are fixed at capture; to learn the shape the host has "
        "to read the device.",
        "Use a form of fixed shape: torch.where or masked_fill for a mask, topk for nonzero, "
        "repeat_interleave(..., output_size=n).",
    ),
    Rule(
        "hidden-sync",
        "an operator reads the device inside",
        "folds",
        "branches",
        "The operator waits for the device (an error code, a size, a search on the host), which a "
        "capture forbids.",
        "Use a form that does not check or read, such as torch.linalg.inv_ex, solve_ex, "
        "cholesky_ex, or call it outside of the graphed function.",
    ),
    Rule(
        "host-constant",
        "data of the host is copied to the device",
        "folds",
        "branches",
        "A copy from pageable memory is forbidden in a capture, and would bring the values of the "
        "capture for ever.",
        "Make the tensor once, outside of the function (register_buffer), or on the device: "
        "torch.full, torch.zeros, torch.arange(..., device=x.device).",
    ),
    Rule(
        "host-compute",
        "the host computes with data of the device",
        "branches",
        "branches",
        "A graph holds work of the device only; an operation on a CPU tensor runs once, at "
        "capture.",
        "Keep the tensor on the device.",
    ),
    Rule(
        "synchronize",
        "the host waits for the device",
        "eager",
        "eager",
        "A capture forbids it, and inside a graph there is nothing to wait for: no work has run.",
        "Remove it from the function; synchronize after the call where timing needs it.",
    ),
    Rule(
        "seed",
        "the state of a generator is set",
        "eager",
        "eager",
        "A graph draws from the generator's state at each replay; setting the state is work of the "
        "host.",
        "Seed before the call: torch.manual_seed(seed); out = fn(x).",
    ),
    Rule(
        "generator",
        "random numbers come from a generator that is made in the call",
        "eager",
        "eager",
        "A graph has to know its generators before the capture, and they have to outlive it.",
        "Make the generator once, outside of the function, and keep it on the object.",
    ),
    Rule(
        "default-stream",
        "work is put on the default stream",
        "eager",
        "eager",
        "A capture does not see work on the default stream: it runs once, at capture, and is "
        "silently not in the graph.",
        "Leave out torch.cuda.stream(torch.cuda.default_stream()); the current stream is right.",
    ),
    Rule(
        "side-stream",
        "a side stream is used without being forked from the current stream, or not joined to it",
        "eager",
        "eager",
        "A capture takes in a stream that waits for the capturing one, and has to end with all of "
        "them joined.",
        "side.wait_stream(torch.cuda.current_stream()) before the work, "
        "torch.cuda.current_stream().wait_stream(side) after it.",
    ),
    Rule(
        "thread",
        "another thread is started",
        "eager",
        "eager",
        "A capture records the work of one thread; what the other computes is done once, at "
        "capture.",
        "Do the work on the calling thread, or outside of the function.",
    ),
    Rule(
        "print",
        "something is printed",
        "eager",
        "eager",
        "A replay does not run Python, so it prints nothing.",
        "Remove the print, or print what the call returned.",
    ),
    Rule(
        "python-state",
        "a Python attribute, global or container is changed in each call",
        "eager",
        "eager",
        "A replay does not run Python: the value stays what it was at capture.",
        "Keep the state in a tensor that is written in place: self.position.add_(1).",
    ),
    Rule(
        "python-random",
        "numbers come from Python's or NumPy's random module",
        "eager",
        "eager",
        "A replay does not run Python: every replay would use the numbers of the capture.",
        "Use torch.rand on the device, or draw outside and pass the number.",
    ),
    Rule(
        "unknown-kernel",
        "a kernel that torch does not know gets the address of a tensor",
        "captures",
        "captures",
        "It is captured if it runs on the current stream, but nobody can tell what it writes: such "
        "tensors are never taken for constant.",
        "Wrap it with torch.library.triton_op or torch.library.custom_op(mutates_args=...).",
    ),
    Rule(
        "no-graph",
        "a function marked @gfxgraph.no_graph is called",
        "branches",
        "branches",
        "It runs eagerly between two graphs, at each call.",
        "Nothing to do; each such call costs a launch of another graph.",
    ),
    Rule(
        "forbidden-call",
        "an operator cannot be captured",
        "branches",
        "branches",
        "Capturing this operator was measured to fail on a GPU.",
        "Call it outside of the graphed function.",
    ),
    Rule(
        "autograd",
        "autograd records the call",
        "eager",
        "eager",
        "A replay records nothing for autograd.",
        "Call it under torch.no_grad() or torch.inference_mode().",
    ),
    Rule(
        "argument",
        "an argument cannot be a static input",
        "eager",
        "eager",
        "A graph reads its inputs from fixed addresses; what is no plain dense tensor cannot be "
        "copied there.",
        "Pass torch.Tensor objects on one device, and numbers.",
    ),
    Rule(
        "result",
        "the result holds something that a replay cannot make anew",
        "eager",
        "eager",
        "A replay gives tensors; an object that Python made in the call would be that of the "
        "capture.",
        "Return tensors, numbers and containers of them.",
    ),
    Rule(
        "raises",
        "the function raises an error",
        "eager",
        "eager",
        "There is nothing to capture.",
        "Correct the error; the function was run as it would be run eagerly.",
    ),
    Rule(
        "external-write",
        "a tensor from outside is written in place",
        "captures",
        "captures",
        "Every replay writes it too, as every call does; warm-up and capture are taken back.",
        "Nothing to do.",
    ),
    Rule(
        "input-write",
        "an argument is written in place",
        "captures",
        "captures",
        "The replay writes the static input, which is copied back after each call.",
        "Return a new tensor to save the copy.",
    ),
    Rule(
        "random",
        "random numbers are drawn",
        "captures",
        "captures",
        "Each replay draws new numbers from the generator, as each call does.",
        "Nothing to do.",
    ),
)

RULES: dict[str, Rule] = {rule.id: rule for rule in _CATALOGUE}
"""The catalogue, by rule id."""

"""Which section of docs/troubleshooting.md explains a message.

The page and this table are written together: a test finds for each message of the source a section
here, and for each section a heading there.
"""

from __future__ import annotations

import re

__all__ = ["SECTIONS", "section_of"]

SECTIONS = {
    "a-line-of-your-code": r" Instead: ",
    "a-missing-package": r"pip install|needs torch .* or newer",
    "several-ranks": r"all ranks|which send nothing|goes on when the call ends|"
    r"held by a capture that is under way",
    "memory": r"no room (for its graph|to record)|GFXGRAPH_VRAM_CAP|OutOfMemory|out of memory|"
    r"lies in .* MiB|no capture was begun",
    "the-emulated-device": r"emulat|simulat|SimulatedCuda|kernel for the CPU|fake implementation|"
    r"before enable\(emulate|too large to make up|_NO_BACKWARD",
    "requires-grad": r"requires? grad|autograd|backward pass|forward-mode|set_detect_anomaly",
    "rows-that-padding-reaches": r"rows influence|padding|padded|dynamic dimension|out_dims|"
    r"depends on the size|in pieces|dimensions for|may do something else|calls of this size",
    "control-flow-on-the-device": r"conditional node|the source of .* (is|cannot)|from 3\.11 on|"
    r"cannot be compiled anew|its test is|its turns",
    "captures-by-hand": r"capture_begin|capture_end|capture_error_mode|already holds a capture|"
    r"holds no capture|non-default stream|current stream is (already )?capturing|instantiate\(|"
    r"debug_dump|update\(\)|composition|was updated from|pool\(\) was|replay\(\) was|"
    r"raw_cuda_graph|end on the same stream|keeping its nodes|nodes of this graph|"
    r"the static output|replays run eagerly",
    "compiled-code": r"(^|: )torch\.compile |it was compiled for|compiled (code|function)|"
    r"Inductor|a graph would be slower|no faster|settings are|searche[sd] anew",
    "every-call-is-of-a-new-kind": r"captured and none came again|would need its own graph|"
    r"paths, \d+ replays|change between calls|leaves a mode or a default",
    "no-graph-for-these-arguments": r"has no graph for these|no call with such|known already|"
    r"released meanwhile|could not be used",
    "no-work-for-the-device": r"no work|no tensor among",
    "freed-or-moved-tensors": r"whose memory was freed|were freed after the capture",
    "no_graph-functions": r"may run only once in each call|returns a view of its argument|"
    r"gives out or keeps a tensor|marked no_graph|which it is not given itself|"
    r"where no graph can be cut|in Python, .*: a replay of what follows",
    "random-numbers": r"generator|draws|sets the state of|from another state",
    "threads": r"another thread|on the thread|finalizer, a signal handler",
    "python-state": r"each call (also )?changes|a call changes|advances?\b|still changed|rebind|"
    r"a module was imported|"
    r"keeps results by the very|what it stores|in Python could not be seen|each call advances|"
    r"keys that each call stores|gives something else each time|host reads values of|"
    r"other arguments change|not seen$",
    "results": r"(^|: )results?: |holds a |made in the call but not by it|"
    r"the structure or a plain value",
    "arguments": r"(^|: )(an )?arguments?:? |takes plain numbers alone|"
    r"is used as the key of a dict|neither a tensor nor a constant",
    "modes-around-the-call": r"(^|: )called |Mode\b|torch\.func|is on .* could not be put back|"
    r"inside of a (graphed|capture)",
    "another-path-in-the-capture": r"(another|took) (way|path)|is_current_stream_capturing|"
    r"could not be confirmed",
    "a-replay-differs": r"replay (differs|leaves)|differ|(^|: )the (result|output|tensor)",
    "all-captures-fail": r"warm-up failed|capture failed|cannot be captured|not permitted while|"
    r"previous error during capture|CUDA error|no longer valid|capture stream",
    "files-and-ports": r"cannot listen|no process starts|cannot be read",
    "the-driver-or-the-device": r"driver|GPU|HIP|CUDA|NVRTC|does not answer",
}
"""Section -> what its messages contain. The first one that fits counts."""

_PATTERNS = {section: re.compile(pattern) for section, pattern in SECTIONS.items()}


def section_of(message: str) -> str:
    """The section that explains ``message``; empty: none."""
    return next((name for name, fits in _PATTERNS.items() if fits.search(message)), "")

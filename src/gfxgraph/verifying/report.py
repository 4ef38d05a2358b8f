"""The report of ``verify``: errors of each output, where they begin, and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from ..tables import Shown, counted, filled, table

__all__ = [
    "NO_PLACES",
    "Cause",
    "CauseKind",
    "Divergence",
    "OutputErrors",
    "Part",
    "Places",
    "Verdict",
    "VerifyReport",
    "VerifyResult",
]

Part = Literal["output", "argument", "state"]
"""A result of the function: its output, an argument that it writes, or outside state that it writes
or rebinds."""

Verdict = Literal["equal", "differs", "eager", "raises"]
"""``"equal"`` to eager; ``"eager"``: calls ran eagerly, so there was no graph to compare."""

CauseKind = Literal[
    "overwritten",
    "input",
    "constant",
    "external",
    "random-baked",
    "random-unregistered",
    "random-other",
    "python-state",
    "state",
    "capture",
    "not-replayed",
    "side-effect",
    "not-reproducible",
    "changed-later",
    "moved-later",
    "value-later",
    "fixed-later",
    "unnoticed",
    "stuck",
    "captured-again",
    "experiment",
    "advanced",
]

_WHY: dict[CauseKind, tuple[str, str]] = {
    "overwritten": (
        "a later call overwrites the result of an earlier one",
        "Return a clone of the static output, or use verify(views=True) if each result is used "
        "before the next call.",
    ),
    "input": (
        "the result ignores this argument, to which eager's reacts: it is not copied into its "
        "static input",
        "Call static_input.copy_(argument) before each replay.",
    ),
    "constant": (
        "the result ignores this value, to which eager's reacts: the capture fixed it",
        "Capture once for each value, or pass it in a tensor on the device.",
    ),
    "external": (
        "the result ignores this tensor, to which eager's reacts: the graph reads other memory, "
        "since the tensor was rebound, moved or copied",
        "Change tensors in place (copy_), or capture again after replacing them.",
    ),
    "random-baked": (
        "every seed gives the same random numbers: they were drawn once, outside of the graph or "
        "at capture",
        "Draw them on the device, inside the capture.",
    ),
    "random-unregistered": (
        "the same seed gives different random numbers in each call: they come from a generator "
        "that the seed does not reach",
        "Draw from the default generator, or from one that the function reaches and the graph "
        "knows: graph.register_generator_state(generator).",
    ),
    "random-other": (
        "the same seed gives different random numbers than in eager: more, fewer, or in a "
        "different order",
        "Draw the same numbers in the same order as eager does.",
    ),
    "python-state": (
        "eager rebinds it in each call, but a replay runs no Python code",
        "Keep it in a tensor on the device, and change the tensor in place.",
    ),
    "state": (
        "eager's result changes from call to call, because of its writes, and this one's does not",
        "Let the graph write to the same tensors as eager.",
    ),
    "capture": (
        "only the first calls differ: making the graph drew random numbers, changed state, or gave "
        "a static output before the first replay",
        "Restore the state that warm-up changes, and replay once after the capture.",
    ),
    "not-replayed": (
        "the result ignores everything to which eager's reacts",
        "Replay the graph in each call, after copying the inputs.",
    ),
    "side-effect": (
        "its calls change a tensor that eager reads but does not write: eager's result differs "
        "after them",
        "Let the captured code write to its own tensors, or only where eager writes.",
    ),
    "not-reproducible": (
        "eager differs from itself, from the same state, inputs and seeds",
        "Remove code that depends on time, on the order of atomic additions or on other threads.",
    ),
    "changed-later": (
        "after later in-place changes of weights, results will stay as they are",
        "Capture again then.",
    ),
    "moved-later": (
        "after weights get other memory (module.to(), load_state_dict(assign=True)), results will "
        "stay as they are",
        "Capture again then.",
    ),
    "value-later": (
        "after a change of this value, or of this weight, the results are not those of eager: the "
        "graph does not notice",
        "Pass the value as an argument, and report the function: a graph should have noticed.",
    ),
    "fixed-later": (
        "after later changes of these values in Python, results will stay as they are",
        "Capture again then.",
    ),
    "unnoticed": (
        "the graph relies on what is there, and does not notice when that changes: later results "
        "may be wrong",
        "Report the function: a graph should have noticed.",
    ),
    "stuck": (
        "it was changed and put back, and the graph still takes it for changed",
        "Report the function; this process may not be as it was.",
    ),
    "captured-again": (
        "all that was changed is put back, and no graph answers the next call: it is captured "
        "again",
        "Report the function: a graph should be used again.",
    ),
    "experiment": ("an experiment raised", "Nothing after it was checked."),
    "advanced": (
        "the calls of verify have advanced it, and nobody can put that back",
        "Make it anew before the program goes on.",
    ),
}


@dataclass(frozen=True)
class Cause:
    """The reason for a difference, shown by an experiment; or a change that it would not follow.

    Attributes:
        kind: which experiment showed it.
        what: the arguments, tensors or attributes that it is about; ``""``: none.
        why: the observation.
        remedy: what to do.
    """

    kind: CauseKind
    what: str
    why: str
    remedy: str

    @classmethod
    def of(cls, kind: CauseKind, what: str = "") -> Cause:
        """A cause with the texts of its kind."""
        return cls(kind, what, *_WHY[kind])

    def __str__(self) -> str:
        head = f"{self.kind} ({self.what})" if self.what else self.kind
        return "\n".join([head, filled(f"  Why: {self.why}."), filled(f"  Remedy: {self.remedy}")])


@dataclass(frozen=True)
class Divergence:
    """The first place at which a tensor differs by more than is allowed.

    Attributes:
        call: which call, from 1; call ``n`` has the inputs and the seed of run ``(n - 1) % runs``.
        element: index of the first such element; empty where ``problem`` is of the whole tensor.
        got: the candidate's value there, of a complex one the magnitude; ``None`` where it is not
            finite, which JSON cannot say.
        expected: eager's.
        problem: what is wrong, in words.
    """

    call: int
    element: tuple[int, ...]
    got: float | None
    expected: float | None
    problem: str


@dataclass(frozen=True)
class OutputErrors:
    """The errors of one tensor against eager's, over all calls.

    Attributes:
        name: its expression: ``out["logits"][0]``; for a tensor that the function writes, the name
            of the argument or of the tensor.
        part: ``"output"``, ``"argument"`` that is written, or ``"state"``: a tensor from outside
            that is written, or a Python value that is rebound.
        dtype: such as ``"float32"``; for a value that is no tensor, its class.
        threshold: the relative error that is allowed; 0 for values that have to be equal.
        max_error: the largest ``|candidate - eager|``.
        mean_error: its mean over all elements and calls.
        relative_error: the largest, over the calls, of ``max |candidate - eager| / max |eager|``
            (or ``/ 1`` where eager is all 0).
        first: where it first differs by more than is allowed; ``None``: nowhere.
    """

    name: str
    part: Part
    dtype: str
    threshold: float
    max_error: float
    mean_error: float
    relative_error: float
    first: Divergence | None

    @property
    def ok(self) -> bool:
        """Whether it is within the threshold in all calls."""
        return self.first is None


@dataclass(frozen=True)
class Places:
    """The outcome of changing, one by one, the places that graphs of gfxgraph watch.

    Each is put back at once. All is 0 for a candidate without such a graph.

    Attributes:
        changed: how many were changed: attributes, items, lengths, classes, code, memory, settings.
        noticed: how many of these changes the guards of the graphs noticed.
        also_run: how many values and weights were changed while both sides were called.
        unchanged: how many were not changed: it is not possible, or there was no time.
        not_run: how many values and weights were not tried in calls, since there was no time.
    """

    changed: int = 0
    noticed: int = 0
    also_run: int = 0
    unchanged: int = 0
    not_run: int = 0

    def __str__(self) -> str:
        text = f"It noticed {self.noticed} of {counted(self.changed, 'change')} to what it watches"
        text = f"{text}; {self.also_run} were also tried in calls"
        left = {"place": self.unchanged, "call": self.not_run}
        rest = ", ".join(counted(count, what) for what, count in left.items() if count)
        return f"{text} (left out: {rest})" if rest else text


NO_PLACES = Places()
"""None was changed."""


@dataclass(frozen=True)
class VerifyResult:
    """The comparison of one candidate with eager.

    Attributes:
        name: the name of the candidate.
        calls: how many calls of it.
        captured: whether the calls of the second round were replays, but for the first one where
            calls write state outside: that is put back between the rounds. ``None`` for a candidate
            that is not of gfxgraph, since it does not say.
        replays: how many calls were replays; ``None`` as above.
        reason: why it is no graph, or hardly ever replays; ``""``: it is one.
        fallbacks: reason -> calls that ran eagerly for it.
        outputs: a row for each tensor, in the order of the result.
        causes: why it differs; empty if it does not, or if no experiment explains it.
        cautions: later changes that it would not follow; they make no difference yet.
        error: the error that it raised; ``None``: none.
        places: the places that were changed for a moment, to see whether the graphs notice.
    """

    name: str
    calls: int
    captured: bool | None
    replays: int | None
    reason: str
    fallbacks: dict[str, int]
    outputs: tuple[OutputErrors, ...]
    causes: tuple[Cause, ...]
    cautions: tuple[Cause, ...]
    error: str | None
    places: Places = NO_PLACES

    @classmethod
    def refused(cls, name: str, reason: str) -> VerifyResult:
        """That of a function which cannot even be called to be compared."""
        return cls(name, 0, False, 0, reason, {}, (), (), (), None)

    @property
    def verdict(self) -> Verdict:
        """The outcome; ``"eager"`` only if nothing differs."""
        if self.error is not None:
            return "raises"
        if not self.ok:
            return "differs"
        return "eager" if self.captured is False else "equal"

    @property
    def ok(self) -> bool:
        """Whether it equals eager, and later calls leave its results alone.

        Also true where all calls ran eagerly: see :attr:`verdict`.
        """
        return self.error is None and not self.causes and all(row.ok for row in self.outputs)

    @property
    def first(self) -> OutputErrors | None:
        """The first output that diverges, in the earliest call."""
        diverging = [row for row in self.outputs if row.first is not None]
        return min(diverging, key=lambda row: row.first.call, default=None)  # type: ignore[union-attr]


@dataclass(frozen=True)
class VerifyReport(Shown):
    """The result of :func:`gfxgraph.verify`.

    Attributes:
        name: the function.
        device: the device that it ran on.
        torch: version of torch.
        runs: how many inputs, each with a seed of its own.
        seed: seed of the first run.
        graph: the graph, or the candidate given, against eager.
        compiled: ``torch.compile`` against eager; ``None``: not asked for.
    """

    name: str
    device: str
    torch: str
    runs: int
    seed: int
    graph: VerifyResult
    compiled: VerifyResult | None = None

    @property
    def ok(self) -> bool:
        """Whether no candidate that ran differs from eager; one that does not compile does not
        run."""
        compiled = self.compiled
        return self.graph.ok and (compiled is None or compiled.error is not None or compiled.ok)

    @property
    def verdict(self) -> Verdict:
        """The verdict of the graph, or of the given candidate."""
        return self.graph.verdict

    @property
    def is_graph(self) -> bool | None:
        """Whether calls of this kind are replays; ``None``: the candidate does not say."""
        return self.graph.captured and not self.graph.reason

    def to_dict(self) -> dict[str, Any]:
        """The report for ``--json``."""
        head = {"verdict": self.verdict, "reason": self.graph.reason, "is_graph": self.is_graph}
        return {"schema": "gfxgraph.verify/1", "ok": self.ok, **head, **asdict(self)}

    def _printed(self) -> list[str]:
        lines = [
            filled(f"{self.name}: {self._in_words()}"),
            f"Compared on {self.device}, torch {self.torch}; seeds from {self.seed}.",
        ]
        for result in (self.graph, *([self.compiled] if self.compiled else [])):
            lines += ["", *self._shown(result)]
        return lines

    def _in_words(self) -> str:
        graph = self.graph
        if graph.verdict in ("differs", "raises") or graph.captured is not False:
            words = {"equal": "is right", "differs": "is wrong", "raises": "raises an error"}
            kind = f"{graph.name[0].lower()}{graph.name[1:]}" if graph.captured else graph.name
            but = f", but {graph.reason}" if graph.reason else ""
            return f"{kind} {words[graph.verdict]}{but}."
        if graph.replays:
            return f"only some calls are replays ({graph.replays}), since {graph.reason}"
        return f"runs eagerly, since {graph.reason}"

    def _shown(self, result: VerifyResult) -> list[str]:
        calls = f"{counted(result.calls, 'call')} of {counted(self.runs, 'input')}"
        if result.verdict == "eager":
            twice = any(cause.kind == "not-reproducible" for cause in result.cautions)
            what = "eager differs from itself" if twice else f"{calls} equal eager"
            lines = [f"There was no graph to compare{f'; {what}' if result.calls else ''}."]
        elif result.ok:
            lines = [f"{result.name} equals eager in {calls}."]
        elif result.error is not None:
            lines = [f"{result.name} raises {result.error}"]
        elif result.first is None:
            lost = any(cause.kind == "overwritten" for cause in result.causes)
            but = "its results do not last" if lost else "it would not follow a later change"
            lines = [f"{result.name} equals eager in {calls}, but {but}."]
        else:
            lines = [f"{result.name} differs from eager in {calls}."]
        if result.first is not None and result.first.first is not None:
            at = result.first.first
            run = (at.call - 1) % self.runs
            lines.append(
                f"First in {result.first.name}, call {at.call} (input {run}, seed "
                f"{self.seed + run}): {at.problem}"
            )
        if result.places.changed:
            lines.append(f"{result.places}.")
        ran = result.fallbacks.items()
        lines += [filled(f"  {counted(n, 'call')} ran eagerly: {why}") for why, n in ran]
        lines += _table(result.outputs)
        if result.first is not None and not result.causes and result.error is None:
            lines.append("No experiment shows why.")
        for title, causes in (("Likely cause", result.causes), ("Caution", result.cautions)):
            lines += [f"{title}: {cause}" for cause in causes]
        return lines


def _table(rows: tuple[OutputErrors, ...]) -> list[str]:
    if not rows:
        return []
    cells = []
    for row in rows:
        numbers = (row.max_error, row.mean_error, row.relative_error, row.threshold)
        name = f"{row.name} ({row.part})" if row.part != "output" else row.name
        mark = "" if row.ok else "differs"
        cells.append((f"  {name}", row.dtype, *(f"{number:.3g}" for number in numbers), mark))
    headings = ("", "dtype", "max error", "mean error", "relative", "allowed", "")
    return table(headings, cells)

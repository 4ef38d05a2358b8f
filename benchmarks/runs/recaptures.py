"""Whether real models that nobody changes are captured once, over 20 calls each.

``PYTHONPATH=src python3 -m benchmarks.runs.recaptures [--out FILE] [--commit C] [--only NAME]``:
models of transformers, timm, torchvision, diffusers and torch.nn with random weights, and some of
the whole calls. Each is made twice; one is graphed, its twin stays eager. All calls have fresh
inputs of one shape. A capture after the first one that the guards are the reason for is a false
one (``changed``, ``recaptures``). On a machine without a GPU the graphs are emulated.
"""

from __future__ import annotations

import dataclasses
import functools
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import gfxgraph
from benchmarks.lib.report import about, arguments, failure, shortened, write
from benchmarks.runs import models, whole_calls
from benchmarks.runs.whole_calls import DEVICE, Made, differences

CALLS = 20

TIMM = (
    "convnext_atto",
    "efficientnet_b0",
    "ghostnet_100",
    "mixer_s32_224",
    "mobilenetv3_small_100",
    "regnety_002",
    "resnet18",
    "vit_tiny_patch16_224",
)
TORCHVISION = {
    "resnet18": {},
    "mobilenet_v2": {},
    "shufflenet_v2_x0_5": {},
    "squeezenet1_1": {},
    "segmentation.lraspp_mobilenet_v3_large": {"weights_backbone": None},
    "segmentation.deeplabv3_mobilenet_v3_large": {"weights_backbone": None},
}
# Cases of whole_calls: detectors, pipelines, caches as results, state.
WHOLE = (
    "retinanet_resnet50_fpn",
    "fcos_resnet50_fpn",
    "ssdlite320_mobilenet_v3_large",
    "stable_diffusion_ddim",
    "stable_diffusion_euler",
    "flux",
    "llama_with_cache",
    "mamba_with_cache",
    "t5_with_cache",
    "recurrent_cell",
    "recurrent_lstm",
    "temporal_ensemble",
)


def _ready(model: nn.Module) -> Any:
    return model.to(DEVICE).eval()


def _images(make: Callable[[], nn.Module], size: int) -> Made:
    model = _ready(make())
    return model, model, lambda: (torch.randn(2, 3, size, size, device=DEVICE),)


def _of_timm(name: str) -> Made:
    import timm

    size = 224 if "224" in name else 64
    return _images(lambda: timm.create_model(name, pretrained=False), size)


def _of_torchvision(name: str, **options: Any) -> Made:
    import torchvision

    *path, last = name.split(".")
    place = functools.reduce(getattr, path, torchvision.models)
    return _images(lambda: getattr(place, last)(weights=None, **options), 64)


def _of_transformers(family: str) -> Made:
    import transformers

    cls, changes, kind = models.TRANSFORMERS[family]
    config = transformers.AutoConfig.for_model(family, **changes)
    model = _ready(getattr(transformers, cls).from_config(config))
    names = list(models.inputs(kind, 224, torch.Generator()))
    options = {"use_cache": False} if hasattr(config, "use_cache") else {}

    def call(*args: torch.Tensor) -> Any:
        return model(**dict(zip(names, args, strict=True)), **options)

    def make() -> tuple[torch.Tensor, ...]:
        random = torch.Generator().manual_seed(int(torch.randint(10**6, ())))
        return tuple(t.to(DEVICE) for t in models.inputs(kind, 224, random).values())

    return call, model, make


def _unet() -> Made:
    model = _ready(whole_calls._unet())
    return (
        model,
        model,
        lambda: (
            torch.randn(1, 4, 8, 8, device=DEVICE),
            torch.randint(1000, (1,), device=DEVICE),
            torch.randn(1, 3, 16, device=DEVICE),
        ),
    )


def _vae() -> Made:
    model = _ready(whole_calls._vae())
    return model.decode, model, lambda: (torch.randn(1, 4, 8, 8, device=DEVICE),)


def _of_torch(make: Callable[[], nn.Module]) -> Made:
    model = _ready(make())
    return model, model, lambda: (torch.randn(2, 5, 16, device=DEVICE),)


def cases() -> Iterator[tuple[str, Callable[[], Made]]]:
    """Name, and what makes it."""
    for family in models.TRANSFORMERS:
        yield f"transformers {family}", functools.partial(_of_transformers, family)
    for name in TIMM:
        yield f"timm {name}", functools.partial(_of_timm, name)
    for name, options in TORCHVISION.items():
        yield f"torchvision {name}", functools.partial(_of_torchvision, name, **options)
    yield "diffusers UNet2DConditionModel", _unet
    yield "diffusers AutoencoderKL.decode", _vae
    layers: dict[str, Callable[[], nn.Module]] = {
        "LSTM": lambda: nn.LSTM(16, 8, num_layers=2, batch_first=True),
        "GRU": lambda: nn.GRU(16, 8, bidirectional=True, batch_first=True),
        "TransformerEncoder": lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2
        ),
    }
    for name, make in layers.items():
        yield f"torch.nn {name}", functools.partial(_of_torch, make)
    for name in WHOLE:
        yield f"whole {name}", whole_calls.CASES[name]


@dataclasses.dataclass
class Row:
    """What became of one model.

    Attributes:
        name: of the case.
        captures: graphs that were captured.
        replays: calls that a graph has answered.
        paths: ways of the data; a new one is captured too, and is no false capture.
        recaptures: captures because something was seen to change.
        changed: what that was.
        wrong: how a result, or the state at the end, differs from the eager twin.
        why: the reasons of eager calls.
        seconds: that all calls of both took.
    """

    name: str
    captures: int = 0
    replays: int = 0
    paths: int = 0
    recaptures: int = 0
    changed: list[str] = dataclasses.field(default_factory=list)
    wrong: str = ""
    why: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0


@torch.no_grad()
def judged(name: str, make: Callable[[], Made]) -> Row:
    """Call both twins with fresh inputs; compare the results."""
    torch.manual_seed(0)
    fn, state, arguments_of = make()
    torch.manual_seed(0)
    twin, twins_state, _ = make()
    graph, row, begin = gfxgraph.graphed(fn), Row(name), time.perf_counter()
    for n in range(CALLS):
        torch.manual_seed(n)
        args = arguments_of()
        copies = tuple(arg.clone() for arg in args)
        torch.manual_seed(100 + n)
        expected = twin(*copies)
        torch.manual_seed(100 + n)
        found = differences(graph(*args), expected, "result")
        row.wrong = row.wrong or next((f"call {n}: {text}" for text in found), "")
    row.wrong = row.wrong or next(differences(state, twins_state, "state"), "")
    row.seconds = round(time.perf_counter() - begin, 2)
    stats = graph.stats()
    row.captures, row.replays, row.recaptures = stats.captures, stats.replays, stats.recaptures
    row.paths = max((kind.paths for kind in stats.graphs), default=0)
    row.changed = list(map(shortened, stats.changed))
    row.why = [shortened(text)[:300] for text in (*stats.refused.values(), *stats.fallbacks)]
    graph.reset()
    return row


def main() -> None:
    """Judge all, print a line each, write JSON."""
    parser = arguments(__doc__, "recaptures.json")
    parser.add_argument("--only", default="", help="part of the names")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    packages = ("transformers", "timm", "torchvision", "diffusers")
    result = about("recaptures", options.commit, *packages) | {"calls": CALLS}
    rows: list[Row] = []
    skipped: dict[str, str] = {}
    for name, make in cases():
        if options.only not in name:
            continue
        try:
            row = judged(name, make)
        except ImportError as error:
            skipped[name] = shortened(str(error))
            print(f"{name:45} skipped: {error}", flush=True)
            continue
        except Exception as error:  # of another version of a library
            row = Row(name, why=[f"could not be played: {failure(error)['error']}"])
        rows.append(row)
        print(
            f"{name:45} {row.seconds:7.2f} s {row.captures:3} captures {row.paths:3} paths "
            f"{row.replays:3} replays {row.recaptures:3} again  "
            f"{row.wrong or '; '.join(row.changed or row.why)}",
            flush=True,
        )
        totals = {
            "models": len(rows),
            "replayed": sum(row.replays > 0 for row in rows),
            "false recaptures": sum(row.recaptures for row in rows),
            "wrong": sum(bool(row.wrong) for row in rows),
        }
        listed = [dataclasses.asdict(row) for row in rows]
        write(options.out, result | totals | {"skipped": skipped, "rows": listed})
    if rows:
        print(totals)


if __name__ == "__main__":
    main()

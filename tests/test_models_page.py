"""docs/models.md is what was measured, and the measurements of decoding compare what they say."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from benchmarks.lib.report import shortened
from benchmarks.tables import models as models_table
from tests.helpers.paths import RESULTS

SECTIONS = {
    "models.json": "## timm",
    "policies.json": "## LeRobot",
    "decode.json": "## Decoding",
    "diffusion.json": "## Diffusion",
    "compiled.json": "## torch.compile",
}
SPEED = {"tokens/s": 80.0, "ms a step": 12.5, "first call s": 1.5, "runs": 3}
MEASURED = {"command": "python3 x.py", "commit": "abc1234", "device": "a GPU", "torch": "2.11"}
DECODED = MEASURED | {
    "model": "Llama",
    "prompt": 32,
    "new tokens": 512,
    "batch 1, bfloat16": {
        "ways": {
            "eager, dynamic cache": SPEED,
            "graphs": SPEED | {"tokens/s": 500.0, "host, ms a step": 0.05},
            "graphs of a compiled step": {"error": "CaptureError: no | room"},
        },
        "graphs against": {"eager, dynamic cache": 6.25},
        "tokens": {"graphs / eager, dynamic cache": {"equal": 300, "of": 512, "first": 0}},
    },
}
DIFFUSED = MEASURED | {
    "models": {
        "a UNet": {
            "parameters": 10**9,
            "steps": 20,
            "eager": {"ms an image": 500.0, "first call s": 1.0},
            "one graph": {
                "ms an image": 250.0,
                "first call s": 2.0,
                "times faster": 2.0,
                "largest difference": 0.0,
                "captures": 1,
                "why eager": [],
            },
        }
    }
}


COMPILED = MEASURED | {
    "models": {
        "mlp": {
            "process": "exit status 0",
            "s": 9.5,
            "ways": {
                "eager": {"host_us": 90.0, "end_to_end_us": 150.0, "calls": 500},
                "graph": {"host_us": 9.0, "end_to_end_us": 60.0, "largest difference": 0.0},
                "compile + graph": {"not compiled": ["no compiler"], "why eager": []},
                "torch.compile max-autotune": {"error": "RuntimeError: x"},
            },
        }
    }
}


def page_of(folder: Path, **files) -> str:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return models_table.page(folder)


def test_the_page_is_what_the_results_make():
    assert models_table.PAGE.read_text(encoding="utf-8") == models_table.page(RESULTS), (
        "run PYTHONPATH=src python3 -m benchmarks.tables models"
    )


def test_a_section_is_there_if_its_results_are(tmp_path):
    assert not re.findall("^##", models_table.page(tmp_path), re.MULTILINE)
    for name in ("models.json", "policies.json"):
        shutil.copy(RESULTS / name, tmp_path)
        page = models_table.page(tmp_path)
        for file, title in SECTIONS.items():
            assert (title in page) == (tmp_path / file).exists()


def test_a_model_that_is_slower_or_differs_is_named(tmp_path):
    row = {"replays": 3, "differs": "", "largest difference": 0.0, "eager ms": 2.0, "graph ms": 1.0}
    page = page_of(
        tmp_path,
        models=MEASURED
        | {
            "models": {
                "timm fast": row,
                "timm slow": row | {"graph ms": 4.0, "largest difference": 1e-7},
                "timm wrong": row | {"differs": "by 3", "why eager": ["a | b"]},
                "timm missing": {"error": "ImportError: x"},
            }
        },
    )
    assert "4 models: 2 equal to eager, 1 of them bit for bit" in page
    assert "Slower than eager: slow." in page
    assert "| fast | images | bit for bit | 2 | 1 | 2.00 |  |" in page
    assert "| slow | images | to 1e-07 | 2 | 4 | 0.50 |  |" in page
    assert "| wrong | images | no: by 3 | 2 | 1 | 2.00 | eager: `a \\| b` |" in page
    assert "| missing | images | not run: `ImportError: x` |" in page


def test_decoding_shows_what_failed_and_where_texts_part(tmp_path):
    page = page_of(tmp_path, decode=DECODED)
    assert "| eager, dynamic cache | 80 | 6.25 | 1.5 | 12.5 |" in page
    assert "| graphs of a compiled step | failed: `CaptureError: no \\| room` |" in page
    assert "| graphs / eager, dynamic cache | 300 | 512 | 0 |" in page
    assert "a GPU, torch 2.11; `python3 x.py` at abc1234." in page


def test_an_image_is_compared_with_eager(tmp_path):
    page = page_of(tmp_path, diffusion=DIFFUSED)
    assert "| a UNet | one graph | 250 | 2.00 | bit for bit | 2 |  |" in page


def test_what_was_not_compiled_says_why(tmp_path):
    page = page_of(tmp_path, compiled=COMPILED)
    assert "| mlp | eager | 150 | 90 |  |  |  |" in page
    assert "| mlp | graph | 60 | 9 |  | 0 |  |" in page
    assert "| mlp | compile + graph |  |  |  |  | not compiled: `no compiler` |" in page
    assert "| mlp | torch.compile max-autotune |  |  |  |  | failed: `RuntimeError: x` |" in page


@pytest.mark.parametrize(
    "text", [models_table.PAGE, *sorted(RESULTS.glob("*.json"))], ids=lambda p: p.name
)
def test_nothing_of_the_machine_is_told(text):
    assert not re.search(r"site-packages|/home/|/opt/|/tmp/|/usr/|/root/", text.read_text())


def test_files_are_named_from_their_package_on():
    line = "/a b/lib/python3.12/site-packages/timm/x.py:61, in f: y: /c/lib/python3.11/ast.py:2"
    assert shortened(line).endswith("timm/x.py:61, in f: y: ast.py:2")
    assert shortened("timm/x.py:61, in f: a / b") == "timm/x.py:61, in f: a / b"


@pytest.fixture
def decode():
    pytest.importorskip("transformers")
    from benchmarks.runs import decode

    return decode


@pytest.mark.long
def test_the_baseline_of_decoding_runs_without_gfxgraph(decode, capsys):
    size = {"layers": 1, "hidden": 64, "prompt": 6, "tokens": 3, "rows": 2}
    found, texts = decode.of_generate(size)
    assert texts[1, "float32", decode.DYNAMIC].shape == (1, 9)
    assert texts[2, "bfloat16", decode.DYNAMIC].shape == (2, 9)
    assert {way for *_, way in found} == {
        decode.DYNAMIC,
        decode.STATIC,
        decode.COMPILED,
        decode.KEPT,
    }
    assert "ended with" not in capsys.readouterr().out, "it ends so where gfxgraph was imported"


def test_texts_are_compared_token_by_token(decode):
    one = torch.tensor([[1, 2, 3, 4, 5], [1, 2, 3, 4, 5]])
    other = torch.tensor([[9, 2, 3, 4, 5], [9, 2, 3, 0, 5]])
    assert decode.compared(one, other, 3) == {"equal": 5, "of": 6, "first": 1}
    assert decode.compared(one, one, 3) == {"equal": 6, "of": 6, "first": None}


def test_a_token_that_is_not_the_most_likely_is_behind_it(decode, device):
    model = decode.make_llama(1, 64).float()
    ids, mask = decode.prompts(2, 6)
    text = model.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False)
    nearly = decode.behind(model, text, mask, 4)
    text[0, -1] = (text[0, -1] + 1) % 1000
    assert nearly < 100 < decode.behind(model, text, mask, 4)

"""A browser shows the page of our results: no error, no scrolling sideways."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

import gfxgraph
from tests.helpers.paths import RESULTS

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
]


def browse(page, *options) -> subprocess.CompletedProcess:
    common = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0")
    command = [CHROMIUM, *common, f"--user-data-dir={page.parent / 'profile'}", *options]
    return subprocess.run(
        [*command, page.as_uri()], capture_output=True, text=True, timeout=60, check=True
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    pytest.importorskip("vl_convert")
    path = tmp_path_factory.mktemp("page") / "page.html"
    gfxgraph.report(RESULTS, path)
    return path


# A page around ours, as wide as a phone, a tablet and a desk: a window of Chromium has a least
# width. Its script says what a reader would see.
AROUND = """<iframe src="page.html" style="width:{width}px;height:900px;border:0"></iframe>
<pre></pre><script>
const frame = document.querySelector("iframe");
frame.onload = () => {{
  const seen = frame.contentDocument, root = seen.documentElement;
  const widths = [...seen.querySelectorAll("svg")].map(svg => svg.getBoundingClientRect().width);
  document.querySelector("pre").textContent = JSON.stringify({{
    scroll: root.scrollWidth, svg: Math.max(...widths), text: seen.body.innerText.slice(0, 3000),
    back: frame.contentWindow.getComputedStyle(seen.body).backgroundColor,
    svgs: seen.querySelectorAll("svg").length,
  }});
}};
</script>"""


def seen(page, width, scheme) -> dict:
    """What the script says; scheme 0 is dark, 1 light."""
    around = page.with_name(f"around{width}.html")
    around.write_text(AROUND.format(width=width))
    done = browse(
        around,
        "--allow-file-access-from-files",
        f"--blink-settings=preferredColorScheme={scheme}",
        "--virtual-time-budget=4000",
        "--dump-dom",
    )
    assert "CONSOLE" not in done.stderr
    return json.loads(re.search(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)[1])


@pytest.mark.parametrize("width", [390, 820, 1440])
def test_it_fits_each_width_in_light_and_dark(page, width):
    backs = set()
    for scheme in (0, 1):
        found = seen(page, width, scheme)
        assert found["scroll"] <= width
        assert 150 < found["svg"] <= width and found["svgs"] > 30
        assert "What is wrong or refused" in found["text"] and "NVIDIA H200" in found["text"]
        backs.add(found["back"])
    assert len(backs) == 2


def test_long_words_do_not_make_it_wider(bench, tmp_path):
    word = "W" * 500
    ways = [{**way, "note": word} for way in bench.to_dict()["ways"]]
    named = {"name": word, "device": word, "verdict": word, "ways": ways}
    (tmp_path / "a.json").write_text(json.dumps(bench.to_dict() | named))
    gfxgraph.report(tmp_path, tmp_path / "page.html", title=word)
    assert seen(tmp_path / "page.html", 390, 1)["scroll"] <= 390

"""A browser shows the site: at 360 px, in light and dark, with scripts and without."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.helpers.paths import ROOT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    build = (sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder)
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(build, cwd=ROOT, check=True, timeout=100, env=quiet)
    return folder


# Shows one page after the other in a frame as wide as a phone. Without scripts, the frame is one
# in which none may run.
AROUND = """<pre></pre><script>
const pages = {pages}, sandbox = {sandbox}, found = {{}};
const show = number => {{
  if (number == pages.length) {{
    document.querySelector("pre").textContent = JSON.stringify(found);
    return;
  }}
  const frame = document.createElement("iframe");
  if (sandbox) frame.sandbox = "allow-same-origin";
  frame.style = "width:360px;height:900px;border:0";
  frame.onload = () => {{
    const page = frame.contentDocument, body = page.body;
    const article = page.querySelector("article");
    found[pages[number]] = {{
      scroll: page.documentElement.scrollWidth,
      words: article.innerText.split(/\\s+/).length,
      back: frame.contentWindow.getComputedStyle(body).backgroundColor,
      pictures: [...article.querySelectorAll("img")].every(i => i.complete && i.naturalWidth),
    }};
    if (sandbox) frame.remove();
    show(number + 1);
  }};
  frame.src = pages[number];
  document.body.append(frame);
}};
onload = () => show(0);
</script>"""


def seen(site, pages: list[str], scripts: bool, scheme: int) -> dict[str, dict]:
    """Page -> what a reader sees of it; scheme 0 is dark, 1 light."""
    around = site / "around.html"
    around.write_text(AROUND.format(pages=json.dumps(pages), sandbox=json.dumps(not scripts)))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += ["--allow-file-access-from-files", f"--user-data-dir={site.parent / 'profile'}"]
    command += [f"--blink-settings=preferredColorScheme={scheme}", "--virtual-time-budget=5000"]
    done = subprocess.run(
        [*command, around.as_uri()], capture_output=True, text=True, timeout=100, check=True
    )
    found = json.loads(re.search(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)[1])
    assert list(found) == pages
    return found


def check(found: dict[str, dict]) -> None:
    """No page is wider than its frame, and all of it is there."""
    assert not {page: one["scroll"] for page, one in found.items() if one["scroll"] > 360}
    assert all(one["pictures"] for one in found.values())
    assert min(one["words"] for one in found.values()) > 40


def test_every_page_fits_a_phone_without_scripts(site):
    pages = sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))
    pages = [page for page in pages if page not in ("404.html", "results.html", "around.html")]
    assert len(pages) > 60
    check(seen(site, pages, scripts=False, scheme=1))


@pytest.mark.parametrize("page", ["index.html", "troubleshooting.html", "api/graphs.html"])
def test_a_page_fits_a_phone_in_light_and_dark(site, page):
    backs = []
    for scheme in (0, 1):
        found = seen(site, [page], scripts=True, scheme=scheme)
        check(found)
        backs.append(found[page]["back"])
    assert backs[0] != backs[1]

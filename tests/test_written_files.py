"""A file that a command writes is there whole, or as it was."""

import os
import stat
import subprocess
import sys

import pytest

from gfxgraph.tables import write_text

FULL = """
import resource, sys
from gfxgraph.tables import write_text
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_text(sys.argv[1], "x" * 5000)
except OSError as error:
    sys.exit(str(error))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a limit of POSIX")
@pytest.mark.parametrize("before", [None, "what was there"])
def test_where_there_is_no_room_a_file_stays_as_it_was(tmp_path, before):
    path = tmp_path / "report.json"
    if before is not None:
        path.write_text(before)
    done = subprocess.run([sys.executable, "-c", FULL, path], capture_output=True, text=True)
    assert done.returncode == 1 and "large" in done.stderr
    assert [file.read_text() for file in tmp_path.iterdir()] == ([] if before is None else [before])


def test_a_file_keeps_its_mode_and_a_link_its_place(tmp_path):
    path, link = tmp_path / "report.json", tmp_path / "link.json"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_text(link, "new")
    assert link.is_symlink() and path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert len(list(tmp_path.iterdir())) == 2


def test_a_pipe_is_written_to(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = subprocess.Popen(["cat", path], stdout=subprocess.PIPE, text=True)
    write_text(path, "text")
    assert reader.communicate()[0] == "text"


@pytest.mark.parametrize("where", ["nowhere/report.json", ""])
def test_a_path_that_cannot_be_written_raises_what_the_system_says(tmp_path, where):
    with pytest.raises(OSError, match="directory"):
        write_text(tmp_path / where, "text")

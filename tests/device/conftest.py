import ctypes
import subprocess

import pytest


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A function that makes a library of a text in C."""

    def library(text):
        folder = tmp_path_factory.mktemp("driver")
        (folder / "driver.c").write_text(text)
        command = ["cc", "-shared", "-fPIC", folder / "driver.c", "-o", folder / "driver.so"]
        try:
            subprocess.run(command, check=True)
        except FileNotFoundError:
            pytest.skip("there is no C compiler")
        return ctypes.CDLL(str(folder / "driver.so"))

    return library

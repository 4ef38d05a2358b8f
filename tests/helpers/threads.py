"""Work on several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any


def on_threads(work: Callable[[Any], object], arguments: Iterable[Any]) -> None:
    """Call ``work`` with each of ``arguments`` on a thread of its own, and wait for all of them."""
    errors: list[BaseException] = []

    def caught(argument: Any) -> None:
        try:
            work(argument)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=caught, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]

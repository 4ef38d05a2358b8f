"""Pieces: streams, events, generators and copies of pinned memory."""

from __future__ import annotations

from typing import Any

import torch

from tests.simulate.pieces import REFUSED, captured, graph_of, piece


@piece()
def fork_and_join() -> Any:
    side = torch.cuda.Stream()

    def function(x: torch.Tensor) -> torch.Tensor:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x * 2
        z = x + 1
        torch.cuda.current_stream().wait_stream(side)
        return y + z

    return captured(function, torch.randn(4, device="cuda"))


@piece()
def fork_and_join_by_events() -> Any:
    side = torch.cuda.Stream()

    def function(x: torch.Tensor) -> torch.Tensor:
        forked, joined = torch.cuda.Event(), torch.cuda.Event()
        forked.record()
        side.wait_event(forked)
        with torch.cuda.stream(side):
            y = x * 2
            joined.record(side)
        joined.wait()
        return y + x

    return captured(function, torch.randn(4, device="cuda"))


@piece(REFUSED)
def fork_without_join() -> Any:
    x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()

    def body() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.mul(2)

    graph_of(body)


@piece(REFUSED)
def stream_that_was_not_forked() -> Any:
    x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()

    def body() -> None:
        x.add(1)
        with torch.cuda.stream(side):
            x.mul(2)

    graph_of(body)


@piece(REFUSED)
def wait_for_uncaptured_work() -> Any:
    x, event = torch.ones(4, device="cuda"), torch.cuda.Event()
    event.record()

    def body() -> None:
        torch.cuda.current_stream().wait_event(event)
        x.add(1)

    graph_of(body)


@piece(REFUSED)
def synchronize_in_capture() -> Any:
    graph_of(torch.cuda.synchronize)


@piece(REFUSED)
def stream_synchronize_in_capture() -> Any:
    graph_of(lambda: torch.cuda.current_stream().synchronize())


@piece(REFUSED)
def event_query_in_capture() -> Any:
    def body() -> None:
        event = torch.cuda.Event()
        event.record()
        event.query()

    graph_of(body)


@piece()
def each_replay_draws_anew() -> Any:
    outs: list[torch.Tensor] = []
    torch.rand(1, device="cuda")
    graph = graph_of(lambda: outs.append(torch.rand(64, device="cuda")))
    drawn = []
    for _ in range(3):
        graph.replay()
        drawn.append(tuple(outs[0].tolist()))
    return len(set(drawn)), 3


@piece()
def seeds_repeat_replays() -> Any:
    outs: list[torch.Tensor] = []
    graph = graph_of(lambda: outs.append(torch.randn(8, device="cuda")))
    drawn = []
    for _ in range(2):
        torch.cuda.manual_seed(3)
        graph.replay()
        drawn.append(outs[0].clone())
    return drawn[0], drawn[1]


@piece()
def registered_generator() -> Any:
    generator, outs = torch.Generator(device="cuda"), []
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        outs.append(torch.rand(8, device="cuda", generator=generator))
    drawn = []
    for _ in range(2):
        generator.manual_seed(5)
        graph.replay()
        drawn.append(outs[0].clone())
    return drawn[0], drawn[1]


@piece("RuntimeError")
def unregistered_generator() -> Any:
    generator = torch.Generator(device="cuda")
    graph_of(lambda: torch.rand(8, device="cuda", generator=generator))


@piece("RuntimeError")
def seed_in_capture() -> Any:
    graph_of(lambda: torch.cuda.manual_seed(1))


@piece()
def pinned_copy_in_capture() -> Any:
    host = torch.ones(4).pin_memory()
    x = torch.zeros(4, device="cuda")
    graph = graph_of(lambda: x.copy_(host, non_blocking=True))
    host.fill_(9)
    graph.replay()
    return x, torch.full((4,), 9.0, device="cuda")


@piece("RuntimeError")
def pageable_copy_in_capture() -> Any:
    host, x = torch.ones(4), torch.zeros(4, device="cuda")
    graph_of(lambda: x.copy_(host))


@piece(REFUSED)
def pinned_copy_that_waits_in_capture() -> Any:
    host, x = torch.ones(4).pin_memory(), torch.zeros(4, device="cuda")
    graph_of(lambda: x.copy_(host))


@piece()
def copy_into_pinned_memory() -> Any:
    host, x = torch.zeros(4).pin_memory(), torch.ones(4, device="cuda")
    graph = graph_of(lambda: host.copy_(x, non_blocking=True))
    x.fill_(3)
    graph.replay()
    torch.cuda.synchronize()
    return host.clone(), torch.full((4,), 3.0)


@piece()
def timed_events() -> Any:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.ones(8, device="cuda").sum()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) >= 0, True


@piece("ValueError")
def events_without_timing() -> Any:
    begin, end = torch.cuda.Event(), torch.cuda.Event()
    begin.record()
    end.record()
    torch.cuda.synchronize()
    begin.elapsed_time(end)


def _recorded_in_a_capture() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    x = torch.ones(2, device="cuda")
    graph_of(lambda: (x.add(1), event.record()))
    return event


@piece(REFUSED)
def query_of_a_captured_event() -> Any:
    _recorded_in_a_capture().query()


@piece(REFUSED)
def synchronize_with_a_captured_event() -> Any:
    _recorded_in_a_capture().synchronize()


@piece(REFUSED)
def wait_for_a_captured_event() -> Any:
    torch.cuda.current_stream().wait_event(_recorded_in_a_capture())


@piece(REFUSED)
def time_of_a_captured_event() -> Any:
    later = torch.cuda.Event(enable_timing=True)
    later.record()
    _recorded_in_a_capture().elapsed_time(later)


@piece()
def captured_event_is_recorded_again() -> Any:
    event = _recorded_in_a_capture()
    event.record()
    event.synchronize()
    return event.query(), True


@piece("ValueError")
def time_of_an_event_without_record() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.elapsed_time(event)

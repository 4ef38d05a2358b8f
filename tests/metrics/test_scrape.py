"""What a scrape of a real endpoint says after real captures, replays, fallbacks and failures."""

from __future__ import annotations

import gc
import os
import socket
import threading
from urllib.request import urlopen

import pytest
import torch
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import gfxgraph
from gfxgraph.call import timing
from gfxgraph.errors import ArgumentError, MissingPackageError, ServerError
from gfxgraph.graph.locks import is_only_thread
from gfxgraph.stats import tally
from tests.helpers.processes import printed
from tests.helpers.scrape import read
from tests.helpers.threads import on_threads
from tests.helpers.unseen import Unseen

pytestmark = pytest.mark.usefixtures("no_grad")


def double(x):
    return x * 2


def on_host(x):
    return x.cpu().numpy()


def test_captures_replays_and_graphs_of_a_callable(device, value):
    graph = gfxgraph.graphed(double)
    for rows in (1, 2, 1, 2, 2):
        graph(torch.ones(rows, device=device))
    assert value("gfxgraph_captures_total", callable="double") == 2
    assert value("gfxgraph_replays_total", callable="double") == 3 == graph.stats().replays
    assert value("gfxgraph_graphs", callable="double") == 2
    assert value("gfxgraph_capture_failures_total", callable="double") == 0
    pool = value("gfxgraph_memory_pool_bytes", callable="double")
    assert pool == graph.stats().pool_bytes > 0


def test_a_fallback_is_counted_with_its_reason(device, server):
    graph = gfxgraph.graphed(on_host)
    for _ in range(3):
        graph(torch.ones(2, device=device))
    ((reason, calls),) = graph.stats().fallbacks.items()
    found = read(server.url)
    (known,) = {labels for name, labels in found if name == "gfxgraph_fallbacks_total"}
    labels = dict(known)
    assert labels["callable"] == "on_host" and " ".join(reason.split()).startswith(labels["reason"])
    assert found["gfxgraph_fallbacks_total", known] == calls == 3
    failures = found["gfxgraph_capture_failures_total", frozenset({("callable", "on_host")})]
    assert failures == 1


def test_a_replay_that_differs_is_a_validation_failure(device, value):
    factor = Unseen(2.0)
    graph = gfxgraph.graphed(lambda x: x * factor.value)
    gfxgraph.enable(validate=True, validate_every=1)
    x = torch.ones(4, device=device)
    graph(x), graph(x), graph(x)
    assert value("gfxgraph_validation_failures_total") == 0
    factor.value = 3.0
    assert graph(x)[0].item() == 3.0
    assert value("gfxgraph_validation_failures_total") == 1


def test_padding_is_the_difference_of_elements_computed_and_needed(device, value):
    pool = gfxgraph.ShapeBucketPool(double, buckets=[4, 16])
    for rows in (3, 3, 3, 10, 10, 40):
        pool(torch.ones(rows, 2, device=device))
    stats = pool.stats()
    assert value("gfxgraph_bucket_elements_needed_total", callable="double") == 69 == stats.asked
    computed = value("gfxgraph_bucket_elements_computed_total", callable="double")
    assert computed == 84 == stats.computed


def test_a_sample_of_the_calls_is_timed_the_first_among_them(device, value):
    graph = gfxgraph.graphed(double)
    x = torch.ones(2, device=device)
    for _ in range(2 + 2 * timing.EVERY):  # the first captures
        graph(x)
    name = "gfxgraph_replay_host_seconds"
    assert value(f"{name}_count", callable="double") == 3
    assert value(f"{name}_bucket", callable="double", le="+Inf") == 3
    assert 0 < value(f"{name}_sum", callable="double") < 60


def test_calls_of_buckets_and_of_alternating_kinds_are_timed_too(device, value):
    pool = gfxgraph.ShapeBucketPool(on := (lambda x: x + 1), buckets=[4])
    graph = gfxgraph.graphed(double)
    for _ in range(5):
        for rows in (1, 2, 3):
            pool(torch.ones(rows, device=device))
            graph(torch.ones(rows, device=device))
    name = "gfxgraph_replay_host_seconds_count"
    assert value(name, callable=on.__qualname__) == 1
    assert value(name, callable="double") == 3  # the first replay of each graph


def test_calls_are_timed_from_the_first_collector_on_also_those_of_older_graphs(device):
    graph = gfxgraph.graphed(double)
    x = torch.ones(2, device=device)
    graph(x), graph(x)
    assert not hasattr(graph._dispatcher.fast_path, "untimed")
    assert not any(tally.by_callable()["double"].times)
    try:
        gfxgraph.metrics.Collector()
        graph(x)
        assert sum(tally.by_callable()["double"].times) == 1
    finally:
        timing.switch(False)
    assert not hasattr(graph._dispatcher.fast_path, "untimed")
    for _ in range(2 * timing.EVERY):
        graph(x)
    assert sum(tally.by_callable()["double"].times) == 1


def test_replays_by_hand_have_a_name_of_their_own(device, value):
    graph = gfxgraph.BridgedCUDAGraph()
    static = torch.ones(2, device=device)
    with graph.capture():
        static * 2
    before = value("gfxgraph_replays_total", callable="BridgedCUDAGraph")
    graph.replay(), graph.replay()
    assert value("gfxgraph_replays_total", callable="BridgedCUDAGraph") == before + 2
    assert value("gfxgraph_captures_total", callable="BridgedCUDAGraph") == 1
    assert value("gfxgraph_launch_host_seconds_count", callable="BridgedCUDAGraph") >= 1


def test_methods_are_counted_together_whatever_their_instance(device, value):
    class Policy:
        @gfxgraph.graphed
        def act(self, x):
            return x * 2

    name = Policy.act.__wrapped__.__qualname__
    policies = Policy(), Policy()
    for policy in policies:
        for _ in range(3):
            policy.act(torch.ones(2, device=device))
    assert value("gfxgraph_replays_total", callable=name) == 4
    assert value("gfxgraph_graphs", callable=name) == 2


# ---- counters never go backwards


def counters(url):
    return {
        key: value
        for key, value in read(url).items()
        if key[0].endswith(("_total", "_count", "_sum", "_bucket"))
    }


def test_no_counter_goes_back_when_callables_are_reset_or_gone(device, server):
    factor = Unseen(2.0)
    callables = [
        gfxgraph.graphed(lambda x: x * factor.value),
        gfxgraph.ShapeBucketPool(double, buckets=[4]),
        gfxgraph.graphed(on_host),
    ]
    x = torch.ones(3, device=device)

    def call():
        for _ in range(3):
            for each in callables:
                each(x)

    steps = [
        call,
        lambda: [each.reset() for each in callables],
        call,
        lambda: (gfxgraph.enable(validate=True, validate_every=1), call()),
        lambda: (setattr(factor, "value", 3.0), call()),
        gfxgraph.disable,
    ]
    before = counters(server.url)
    for step in steps:
        step()
        now = counters(server.url)
        assert now.keys() >= before.keys()
        assert {key: now[key] for key in before if now[key] < before[key]} == {}
        before = now
    needed = "gfxgraph_bucket_elements_needed_total", frozenset({("callable", "double")})
    assert before[needed] == 3 * 3 * 4
    callables.clear()
    gc.collect()
    assert counters(server.url) == before
    graphs = {key: n for key, n in read(server.url).items() if key[0] == "gfxgraph_graphs"}
    assert frozenset({("callable", "on_host")}) not in {labels for _, labels in graphs}


def test_a_replay_that_is_taken_back_takes_no_count_back(device, server):
    """A comparison replays, is counted, and then takes the replay back."""
    graph = gfxgraph.graphed(double)
    x = torch.ones(2, device=device)
    graph(x), graph(x)
    (entry,) = graph._dispatcher.entries.graphs().values()
    key = "gfxgraph_replays_total", frozenset({("callable", "double")})
    assert read(server.url)[key] == 1
    entry.uncount()
    assert read(server.url)[key] == 1
    graph(x)
    assert read(server.url)[key] == 1 == graph.stats().replays
    graph(x)
    assert read(server.url)[key] == 2


@pytest.mark.long
def test_scrapes_while_threads_replay_and_drop_callables_never_go_back(device, server):
    done = threading.Event()

    def serve_requests(n):
        try:
            for _ in range(2):
                graph = gfxgraph.graphed(double)
                pool = gfxgraph.ShapeBucketPool(double, buckets=[4, 8])
                for rows in (1, 2, 3, 2, 3, 5, 1) * 3:
                    x = torch.ones(rows, device=device)
                    with torch.no_grad():
                        assert torch.equal(graph(x), x * 2) and torch.equal(pool(x), x * 2)
                del graph, pool
                gc.collect()
        finally:
            done.set()

    def scrape(_):
        before = counters(server.url)
        while not done.is_set():
            now = counters(server.url)
            assert now.keys() >= before.keys()
            assert {key: now[key] for key in before if now[key] < before[key]} == {}
            before = now

    on_threads(lambda n: scrape(n) if n < 2 else serve_requests(n), range(4))
    found = tally.by_callable()["double"]
    assert found.needed == 2 * 2 * 3 * 17


# ---- labels


def test_ten_thousand_reasons_are_twenty_and_other(device, server):
    for n in range(10_000):
        tally.fallback("served", f"it would take about {n}.5 MiB more")
    found = {k: v for k, v in read(server.url).items() if k[0] == "gfxgraph_fallbacks_total"}
    assert len(found) == 21 and sum(found.values()) == 10_000
    other = frozenset({("callable", "served"), ("reason", "other")})
    assert found["gfxgraph_fallbacks_total", other] == 9_980


def test_a_thousand_callables_are_a_hundred_and_other(server):
    for n in range(1000):
        tally.captured(f"made for request {n}")
    found = {k: v for k, v in read(server.url).items() if k[0] == "gfxgraph_captures_total"}
    assert len(found) == 101 and sum(found.values()) == 1000


@pytest.mark.parametrize(
    "name", ['quo"ted', "back\\slash", "two\nlines", "{job='x'} 1\n# HELP", "\ud800", "é" * 5000]
)
def test_a_name_of_any_letters_is_a_label(device, server, name):
    def fn(x):
        return x * 2

    fn.__qualname__ = name
    graph = gfxgraph.graphed(fn)
    for _ in range(3):
        graph(torch.ones(2, device=device))
    tally.fallback(name, name)
    found = read(server.url)
    label = tally.label(name)
    assert len(label) <= 200 and "\n" not in label
    assert found["gfxgraph_replays_total", frozenset({("callable", label)})] == 2
    both = frozenset({("callable", label), ("reason", label)})
    assert found["gfxgraph_fallbacks_total", both] == 1


# ---- registries, the endpoint, and what is missing


def test_a_collector_works_in_a_registry_of_the_users(device):
    registry = CollectorRegistry()
    registry.register(gfxgraph.metrics.Collector())
    try:
        graph = gfxgraph.graphed(double)
        for _ in range(3):
            graph(torch.ones(2, device=device))
        found = registry.get_sample_value("gfxgraph_replays_total", {"callable": "double"})
        assert found == 2
    finally:
        timing.switch(False)


def test_a_registry_refuses_a_second_collector_and_names_the_metrics():
    registry = CollectorRegistry()
    registry.register(gfxgraph.metrics.Collector())
    try:
        with pytest.raises(ValueError, match="gfxgraph_replays"):
            registry.register(gfxgraph.metrics.Collector())
    finally:
        timing.switch(False)


def test_a_port_in_use_is_an_error_that_says_so(server):
    with pytest.raises(ServerError, match=rf"port={server.port}.*in use"):
        gfxgraph.metrics.serve(port=server.port)
    server.close()
    with gfxgraph.metrics.serve(port=server.port) as again:
        assert again.port == server.port and read(again.url)


def test_the_collector_of_a_refused_server_is_not_left_behind(server):
    server.close(), server.close()
    with pytest.raises(OSError):
        urlopen(server.url, timeout=5)


@pytest.mark.parametrize("port", [-1, 65536, "9100", 9100.0, True, None])
def test_what_is_no_port_is_refused(port):
    with pytest.raises(ArgumentError, match=r"serve\(port="):
        gfxgraph.metrics.serve(port=port)


@pytest.mark.parametrize("addr", ["", None, 4])
def test_what_is_no_address_is_refused(addr):
    with pytest.raises(ArgumentError, match=r"serve\(port=|serve\(addr="):
        gfxgraph.metrics.serve(addr=addr)


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(ServerError, match=r"192\.0\.2\.1"):
        gfxgraph.metrics.serve(port=0, addr="192.0.2.1")
    timing.switch(False)


def test_captures_do_not_mind_the_threads_of_an_endpoint(server):
    """They refuse some effects beside a thread that might have made them."""
    with socket.create_connection((server.addr, server.port)):  # a thread that waits for a request
        assert read(server.url) and is_only_thread()
        seen = []
        other = threading.Thread(target=lambda: seen.append(is_only_thread()))
        other.start(), other.join()
    assert seen == [False]  # two: that one, and the main thread


MISSING = """
import sys
sys.modules["prometheus_client"] = None
import gfxgraph
assert "gfxgraph.metrics" not in sys.modules
gfxgraph.metrics.dashboard()
for make in (gfxgraph.metrics.Collector, gfxgraph.metrics.serve):
    try:
        make()
    except gfxgraph.errors.MissingPackageError as error:
        print(error)
from gfxgraph.call import timing
print(timing.is_on())
"""


def test_without_the_package_there_is_an_error_with_the_command():
    first, second, is_on = printed(MISSING).splitlines()
    assert "pip install prometheus-client" in first == second
    assert is_on == "False"
    assert issubclass(MissingPackageError, gfxgraph.errors.GfxGraphError)


def test_importing_gfxgraph_or_its_metrics_imports_no_prometheus_and_no_driver():
    code = (
        "import sys, gfxgraph; a = 'gfxgraph.metrics' in sys.modules; gfxgraph.metrics; "
        "print(a, 'prometheus_client' in sys.modules, 'gfxgraph.device' in sys.modules)"
    )
    assert printed(code) == "False False False"


FORKS = """
import os, torch, gfxgraph
from urllib.request import urlopen

def double(x):
    return x * 2

def replays(url):
    lines = urlopen(url, timeout=30).read().decode().splitlines()
    return [line for line in lines if line.startswith('gfxgraph_replays_total{callable="double"}')]

graph = gfxgraph.graphed(double)
torch.set_num_threads(1)
with torch.no_grad():
    graph(torch.ones(2)), graph(torch.ones(2))
    server = gfxgraph.metrics.serve(port=0)
    child = os.fork()
    if not child:
        server.close()  # its copy; nobody waits for a thread that is not there
        with gfxgraph.metrics.serve(port=0) as own:
            graph(torch.ones(2)), graph(torch.ones(2))
            assert replays(own.url)[0].endswith(" 3.0"), replays(own.url)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(status, replays(server.url)[0])
    server.close()
"""


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
@pytest.mark.skipif(gfxgraph.device_type() == "cuda", reason="CUDA cannot be used after fork()")
def test_a_child_of_fork_serves_its_own_counts():
    assert printed(FORKS) == '0 gfxgraph_replays_total{callable="double"} 1.0'


def test_the_text_is_what_prometheus_parses(device):
    registry = CollectorRegistry()
    registry.register(gfxgraph.metrics.Collector())
    timing.switch(False)
    gfxgraph.graphed(double)(torch.ones(2, device=device))
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    assert {f.type for f in families} == {"counter", "gauge", "histogram", "summary"}
    assert all(f.documentation.endswith(".") and f.name.startswith("gfxgraph_") for f in families)


def test_pools_of_branches_are_counted_once(device, server):
    graph = gfxgraph.ConditionalGraph().add_branch("draft", double).add_branch("full", double)
    x = torch.ones(1024, device=device)
    graph.capture(x)
    graph.run("draft", x)
    pools = {k: n for k, n in read(server.url).items() if k[0] == "gfxgraph_memory_pool_bytes"}
    label = frozenset({("callable", "draft+full")})
    assert pools["gfxgraph_memory_pool_bytes", label] == graph.stats()["draft"].pool_bytes > 0
    counted = {labels for name, labels in read(server.url) if name == "gfxgraph_replays_total"}
    assert label not in counted


def test_a_client_that_says_nothing_or_goes_away_keeps_nobody_waiting(server):
    silent = socket.create_connection((server.addr, server.port))
    rude = socket.create_connection((server.addr, server.port))
    rude.sendall(b"GET /metr")
    rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    rude.close()  # with a reset
    assert read(server.url)
    silent.close()


def test_an_endpoint_closes_while_it_is_scraped(server):
    def scrape(_):
        try:
            while True:
                read(server.url)
        except OSError:
            return  # it is closed

    closer = threading.Timer(0.3, server.close)
    closer.start()
    on_threads(scrape, range(3))
    closer.join()


def test_a_callable_that_is_dropped_in_the_middle_of_a_scrape_keeps_its_counts(device):
    collector = gfxgraph.metrics.Collector()
    timing.switch(False)
    held = [gfxgraph.graphed(double), gfxgraph.graphed(double, buckets=[4])]
    for graph in held:
        for _ in range(4):
            graph(torch.ones(3, device=device))

    def values(families):
        return {s[:2][0] + str(s[1]): s.value for f in families for s in f.samples}

    families = collector.collect()
    first = next(families)  # half of a scrape
    held.clear()
    gc.collect()
    halves = values([first, *families])
    now = values(collector.collect())
    replays = "gfxgraph_replays_total{'callable': 'double'}"
    needed = "gfxgraph_bucket_elements_needed_total{'callable': 'double'}"
    assert halves[replays] == now[replays] >= 5 and halves[needed] == now[needed] == 12

"""The recommended settings hold inside of the block, and nothing of them remains after it."""

from __future__ import annotations

import logging
import threading
from dataclasses import FrozenInstanceError, asdict
from types import SimpleNamespace

import pytest
import torch._dynamo.config as dynamo_config
import torch._inductor.config as inductor_config
from rich.console import Console

import gfxgraph
from gfxgraph.compiling import inductor
from gfxgraph.errors import ArgumentError


def everything():
    """All settings of torch, as they are now in this thread."""
    return inductor_config.get_config_copy(), dynamo_config.get_config_copy()


def in_threads(*functions):
    errors = []

    def caught(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=caught, args=(f,)) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not errors


def test_what_is_recommended_holds_inside_of_the_block_only():
    before = everything()
    with gfxgraph.inductor_settings() as settings:
        assert inductor_config.max_autotune_gemm_backends == "ATEN"
        assert inductor_config.max_autotune is False
        assert inductor_config.coordinate_descent_tuning is False
        assert inductor_config.epilogue_fusion is True
        assert inductor_config.pattern_matcher is True
        assert inductor_config.aggressive_fusion is False
        assert inductor_config.triton.cudagraphs is False
        assert inductor_config.triton.cudagraph_trees is False
        assert inductor_config.memory_planning is False
        assert inductor_config.reorder_for_locality is True
        assert dynamo_config.cache_size_limit == 128
        assert len(settings.rows) == 11 and all(row.known for row in settings.rows)
    assert everything() == before


def test_values_that_the_user_had_set_come_back():
    with inductor_config.patch({"max_autotune": True, "triton.cudagraph_trees": True}):
        with gfxgraph.inductor_settings():
            assert not inductor_config.max_autotune
            assert not inductor_config.triton.cudagraph_trees
        assert inductor_config.max_autotune
        assert inductor_config.triton.cudagraph_trees


def test_nothing_remains_when_the_block_raises():
    before = everything()
    with pytest.raises(KeyError), gfxgraph.inductor_settings():
        raise KeyError
    assert everything() == before


def test_blocks_nest_also_of_the_same_settings():
    before = everything()
    outer = gfxgraph.inductor_settings()
    with outer:
        with gfxgraph.inductor_settings(max_autotune=True):
            assert inductor_config.max_autotune
            with outer:
                assert not inductor_config.max_autotune
            assert inductor_config.max_autotune
        assert not inductor_config.max_autotune
    assert everything() == before


def test_blocks_of_two_threads_end_in_any_order():
    before = everything()
    settings = gfxgraph.inductor_settings()
    second_is_in, first_is_out = threading.Event(), threading.Event()

    def first():
        with settings:
            assert second_is_in.wait(20)
        first_is_out.set()

    def second():
        own = everything()
        with settings:
            second_is_in.set()
            assert first_is_out.wait(20)
            assert inductor_config.max_autotune_gemm_backends == "ATEN"
        if inductor._is_per_thread(inductor_config):
            assert everything() == own

    in_threads(first, second)
    assert everything() == before


@pytest.mark.skipif(
    not inductor._is_per_thread(inductor_config), reason="all threads share this torch's settings"
)
def test_other_threads_do_not_see_them():
    seen = []
    with gfxgraph.inductor_settings():
        in_threads(lambda: seen.append(dynamo_config.recompile_limit))
    assert seen == [8]


def test_where_all_threads_share_the_settings_the_last_block_puts_them_back():
    config = SimpleNamespace(a=1, b=2)
    first, second = (
        inductor._overridden(config, {"a": 10}),
        inductor._overridden(config, {"a": 20, "b": 3}),
    )
    first.__enter__()
    second.__enter__()
    assert config == SimpleNamespace(a=20, b=3)
    first.__exit__(None, None, None)
    assert config == SimpleNamespace(a=20, b=3)
    second.__exit__(None, None, None)
    assert config == SimpleNamespace(a=1, b=2)


def test_torchs_own_settings_come_back_also_where_threads_share_them(monkeypatch):
    monkeypatch.setattr(inductor, "_is_per_thread", lambda config: False)
    before = everything()
    with inductor_config.patch(max_autotune=True), gfxgraph.inductor_settings():
        with gfxgraph.inductor_settings(**{"triton.cudagraphs": True, "recompile_limit": 3}):
            assert inductor_config.triton.cudagraphs and dynamo_config.cache_size_limit == 3
        assert not inductor_config.triton.cudagraphs and not inductor_config.max_autotune
    assert everything() == before


def test_shared_settings_survive_many_threads():
    config = SimpleNamespace(a=1)

    def work():
        for value in range(300):
            with inductor._overridden(config, {"a": value}):
                assert isinstance(config.a, int)

    in_threads(*[work] * 6)
    assert config.a == 1


def test_single_values_can_be_overridden():
    settings = gfxgraph.inductor_settings(max_autotune=True, **{"triton.cudagraphs": True})
    with settings:
        assert inductor_config.max_autotune and inductor_config.triton.cudagraphs
        assert inductor_config.max_autotune_gemm_backends == "ATEN"
    row = next(row for row in settings.rows if row.name == "max_autotune")
    assert row.value is True and row.found is False and "asked" in row.why


@pytest.mark.parametrize("name", ["cache_size_limit", "recompile_limit"])
def test_the_recompile_limit_goes_by_its_old_and_its_new_name(name):
    with gfxgraph.inductor_settings(**{name: 5}):
        assert dynamo_config.cache_size_limit == 5


def test_any_other_setting_of_inductor_can_be_given_too():
    with gfxgraph.inductor_settings(shape_padding=False) as settings:
        assert inductor_config.shape_padding is False
    assert settings.rows[-1].name == "shape_padding"


def test_an_unknown_name_is_an_error_that_says_what_was_meant():
    with pytest.raises(ArgumentError, match=r"max_autotun=.*'max_autotune'"):
        gfxgraph.inductor_settings(max_autotun=True)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"suppress_errors": True}, "torch._dynamo.config has it"),
        ({"zzz": 1}, "torch._inductor.config lists all settings"),
        ({"triton": None}, "no such setting"),  # a class of theirs, which holds settings
        ({"patch": None}, "no such setting"),
        ({"recompile_limit": 8, "cache_size_limit": 4}, "two names of one setting"),
    ],
)
def test_what_is_no_setting_of_inductor_is_an_error_and_changes_nothing(given, says):
    before = everything()
    with pytest.raises(ArgumentError, match=says):
        gfxgraph.inductor_settings(**given)
    assert everything() == before


def test_a_shared_setting_that_cannot_be_set_leaves_the_others_as_they_were():
    class Config:
        first = 1

        @property
        def second(self):
            return 2

    config = Config()
    with pytest.raises(AttributeError), inductor._overridden(config, {"first": 5, "second": 6}):
        pass
    assert config.first == 1


def test_a_value_of_another_type_is_an_error_that_says_which_type():
    with pytest.raises(ArgumentError, match=r"max_autotune='yes'.*expected bool.*not str"):
        gfxgraph.inductor_settings(max_autotune="yes")


def test_a_setting_that_this_torch_lacks_is_a_row_and_logged_once(monkeypatch, caplog):
    gone = inductor._Advice(("fusion_of_tomorrow",), True, "why", "source")
    monkeypatch.setattr(inductor, "_ADVICE", (*inductor._ADVICE, gone))
    caplog.set_level(logging.WARNING, "gfxgraph")
    before = everything()
    for _ in range(2):
        with gfxgraph.inductor_settings() as settings:
            assert inductor_config.max_autotune_gemm_backends == "ATEN"
    assert everything() == before
    assert not settings.rows[-1].known and settings.rows[-1].found is None
    (line,) = caplog.records
    assert line.event == "unknown_setting" and line.fields["setting"] == "fusion_of_tomorrow"
    assert "not in this torch" in shown(settings)


def test_rows_are_plain_frozen_data_with_a_reason_and_a_source():
    rows = gfxgraph.inductor_settings().rows
    assert all(row.why and row.source for row in rows)
    assert asdict(rows[0])["name"] == "max_autotune"
    with pytest.raises(FrozenInstanceError):
        rows[0].value = True


def test_the_table_shows_each_setting():
    settings = gfxgraph.inductor_settings()
    for text in (shown(settings), str(settings)):
        for row in settings.rows:
            assert f"{row.part}: {row.name}" in text


def shown(renderable):
    console = Console(width=300)
    with console.capture() as text:
        console.print(renderable)
    return text.get()

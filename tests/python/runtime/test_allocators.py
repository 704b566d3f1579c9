"""Processes with another malloc, and how it is told which is in force."""

import os
import subprocess
import sys

import pytest
from aegis import runtime
from aegis.runtime import allocators

WHICH = "from aegis.runtime import active_allocator; print(active_allocator().name)"


def installed(name):
    try:
        return bool(allocators._library(name))
    except runtime.AllocatorNotFound:
        return False


INSTALLED = [
    pytest.param(name, marks=pytest.mark.skipif(not installed(name), reason=f"{name} is not installed"))
    for name in runtime.ALLOCATORS
]


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "which.py"
    path.write_text(WHICH)
    return path


def test_this_process_has_the_systems():
    assert runtime.active_allocator().name == "glibc"
    assert "libc" in runtime.active_allocator().library


@pytest.mark.parametrize("name", INSTALLED)
def test_command_starts_a_process_with_it(name, script):
    command = runtime.allocator_command(script, name)
    done = command.run(capture_output=True, text=True, check=True)
    assert done.stdout == f"{name}\n"
    shell = subprocess.run(str(command), shell=True, capture_output=True, text=True, check=True)
    assert shell.stdout == f"{name}\n"


@pytest.mark.parametrize("name", INSTALLED)
def test_other_preloaded_libraries_stay(name, script):
    environment = runtime.allocator_command(script, name).environment({"LD_PRELOAD": "libother.so"})
    assert environment["LD_PRELOAD"].split(":")[1:] == ["libother.so"]


@pytest.mark.parametrize(
    ("name", "options", "settings"),
    [
        ("jemalloc", {"large_pages": True}, {"MALLOC_CONF": "thp:always,metadata_thp:auto"}),
        (
            "jemalloc",
            {"purge_delay_ms": 100, "arenas": 2},
            {"MALLOC_CONF": "dirty_decay_ms:100,muzzy_decay_ms:100,narenas:2"},
        ),
    ],
)
def test_settings_of_jemalloc(name, options, settings, script):
    if not installed(name):
        pytest.skip(f"{name} is not installed")
    command = runtime.allocator_command(script, name, **options)
    assert {k: v for k, v in command.settings.items() if k != "LD_PRELOAD"} == settings
    done = command.run(capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"{name}\n", ""), "jemalloc tells of settings that it does not know"


def test_settings_of_mimalloc_are_those_of_the_installed_version_case57(script):
    if not installed("mimalloc"):
        pytest.skip("mimalloc is not installed")
    command = runtime.allocator_command(script, "mimalloc", large_pages=True, purge_delay_ms=5, reserve_huge_pages=1)
    verbose = subprocess.run(
        command.argv,
        env=command.environment() | {"MIMALLOC_VERBOSE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    options = [name for name in command.settings if name != "LD_PRELOAD"]
    assert len(options) == 3
    for name in options:
        shown = name.removeprefix("MIMALLOC_").lower()
        assert f"option '{shown}': {command.settings[name]}" in verbose.stderr


def test_settings_that_do_nothing_are_told_case57():
    code = (
        "import os; from aegis.runtime import idle_settings; os.environ['MALLOC_CONF'] = 'narenas:1'; "
        "[print(item) for item in sorted(idle_settings().items())]"
    )
    environment = {**os.environ, "MIMALLOC_PURGE_DELAY": "5"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "('MALLOC_CONF', 'set after the process started, which is when it is read')",
        "('MIMALLOC_PURGE_DELAY', 'mimalloc is not in force; glibc is')",
    ]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dlmalloc", {}, "allocator: expected one of mimalloc, jemalloc, tcmalloc, got 'dlmalloc'"),
        ("mimalloc", {"purge_delay_ms": -1}, "purge_delay_ms: expected at least 0, got -1"),
        ("mimalloc", {"arenas": 2}, "arenas: mimalloc has no such setting"),
        ("jemalloc", {"reserve_huge_pages": 2}, "reserve_huge_pages: jemalloc has no such setting"),
        ("tcmalloc", {"large_pages": True}, "large_pages: tcmalloc has no such setting"),
    ],
)
def test_bad_input(name, options, message, script):
    if name in runtime.ALLOCATORS and not installed(name):
        pytest.skip(f"{name} is not installed")
    with pytest.raises(ValueError, match=message):
        runtime.allocator_command(script, name, **options)


def test_not_installed(monkeypatch, script):
    monkeypatch.setattr(allocators.Path, "exists", lambda self: False)
    with pytest.raises(runtime.AllocatorNotFound, match=r"jemalloc: expected libjemalloc\.so\.2 or .* libjemalloc2"):
        runtime.allocator_command(script, "jemalloc")


@pytest.mark.parametrize("name", INSTALLED)
def test_aegis_run_starts_scripts_with_it(name, tmp_path):
    path = tmp_path / "which.py"
    path.write_text(f"import os, sys; {WHICH}; print(sys.argv[1:], 'AEGIS_RUN_ALLOCATOR' in os.environ); sys.exit(3)")
    command = [sys.executable, "-W", "ignore", "-m", "aegis", "run", "--allocator", name, str(path), "a", "--b"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, f"{name}\n['a', '--b'] False\n", "")


def test_aegis_run_says_what_is_wrong():
    command = [sys.executable, "-m", "aegis", "run", "--allocator", "tcmalloc", "--arenas", "2", __file__]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "aegis run: error: " in done.stderr
    unmet = {**os.environ, "AEGIS_RUN_ALLOCATOR": "mimalloc"}
    done = subprocess.run([*command[:4], __file__], env=unmet, capture_output=True, text=True)
    assert done.returncode == 2
    assert "expected mimalloc to be in force, got glibc" in done.stderr

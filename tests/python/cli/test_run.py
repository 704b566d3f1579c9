"""``aegis run``: a script as python runs it."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

TRAIN = """
    import sys, torch
    from torch.utils.data import DataLoader, Dataset, TensorDataset

    class Squares(Dataset):
        def __len__(self):
            return 10
        def __getitem__(self, i):
            return torch.full((3, 128, 128), float(i * i)), i

    if __name__ == "__main__":
        print(sys.argv[1:], __name__, __file__)
        torch.manual_seed(1)
        workers, method = int(sys.argv[1]), sys.argv[2]
        context = method if workers else None
        for data in (Squares(), TensorDataset(torch.arange(20))):
            for batch in DataLoader(data, 4, shuffle=True, num_workers=workers, multiprocessing_context=context):
                print([field.double().sum().item() for field in batch], flush=True)
"""


@pytest.fixture
def script(tmp_path):
    def write(body, name="script.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(body))
        return str(path)

    return write


def python(*arguments, **options):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120, **options)


def aegis_run(*arguments, **options):
    start = "import sys; from aegis.cli import main; sys.exit(main())"
    return python("-c", start, "run", *arguments, **options)


def assert_like_python(*arguments, **options):
    """Status, output and errors of the script are the same with aegis as without."""
    expected = python(*arguments, **options)
    got = aegis_run("--loader", *arguments, **options)
    assert (got.returncode, got.stdout, got.stderr) == (expected.returncode, expected.stdout, expected.stderr)
    return expected


@pytest.mark.parametrize(("workers", "method"), [(0, "none"), (2, "fork"), (2, "spawn"), (2, "forkserver")])
def test_the_same_batches_in_another_way(script, workers, method):
    path = script(TRAIN)
    expected = python(path, str(workers), method)
    assert expected.stdout.count("\n") == 1 + 3 + 5
    got = aegis_run("--loader", "--verbose", path, str(workers), method)
    report = "aegis run: 8 batches delivered: native 5, arena 3, torch 0\n"
    assert (got.returncode, got.stdout) == (0, expected.stdout)
    # Whether a process that was spawned ends in time for Python's resource tracker is chance, with torch's loader too.
    assert [line for line in got.stderr.splitlines(keepends=True) if "resource_tracker" not in line] == [report]


def test_without_loader_nothing_is_patched(script):
    path = script("from torch.utils.data import DataLoader; print(list(DataLoader(range(3))))")
    got = aegis_run("--verbose", path)
    assert got.stdout == python(path).stdout
    assert got.stderr == "aegis run: 0 batches delivered: native 0, arena 0, torch 0\n"


def test_arguments_and_names_are_the_scripts(script, tmp_path):
    script("answer = 42", "beside.py")
    path = script(
        """
        import os, sys
        import beside, __main__
        here = 7
        print(os.path.abspath(sys.argv[0]), sys.argv[1:])
        print(sys.path[0], __name__, __file__, __spec__, __main__.here, beside.answer)
        """
    )
    for arguments in (["--loader", "-m", "x"], ["--", "-h"], []):
        assert_like_python(path, *arguments)
    assert_like_python("script.py", cwd=tmp_path)
    assert_like_python(os.path.relpath(path))


def test_modules(script, tmp_path):
    script("", "package/__init__.py")
    script("import sys; print(sys.argv, __spec__.name, sys.path[0])", "package/part.py")
    script("import nowhere", "package/broken.py")
    assert_like_python("-m", "package.part", "-x", cwd=tmp_path)
    got = aegis_run("-m", "package.nothing", cwd=tmp_path)
    assert (got.returncode, got.stderr) == (1, "aegis run: error: No module named package.nothing\n")
    got = aegis_run("-m", "package.broken", cwd=tmp_path)
    assert got.returncode == 1
    assert got.stderr.startswith("Traceback")
    assert "broken.py" in got.stderr.splitlines()[1]


@pytest.mark.parametrize(
    "body",
    [
        "import sys; sys.exit(3)",
        "import sys; sys.exit('a message')",
        "import sys; sys.exit()",
        "raise SystemExit(None)",
        "import os; os._exit(5)",
        "def f():\n    raise ValueError('one')\nf()",
        "open('/nowhere/at/all')",
        "raise ImportError('from the script')",
        "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise RuntimeError('two') from error",
        "import sys; sys.excepthook = lambda *_: print('mine', file=sys.stderr)\n1 / 0",
        "import atexit; atexit.register(print, 'at exit')\n1 / 0",
        "x = = 1",
        "raise KeyboardInterrupt",
        "class Odd(BaseException): pass\nraise Odd('three')",
    ],
)
def test_ends_as_under_python(script, body):
    assert_like_python(script(body))


def test_ctrl_c_ends_by_the_signal(script):
    path = script("import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)")
    assert assert_like_python(path).returncode == -signal.SIGINT


def test_the_report_comes_after_an_exception_too(script):
    got = aegis_run("--verbose", script("1 / 0"))
    assert got.returncode == 1
    assert "aegis run: 0 batches delivered" in got.stderr


def test_no_such_file():
    got = aegis_run("nowhere.py")
    assert (got.returncode, got.stderr) == (2, "aegis run: error: can't open file 'nowhere.py': no such file\n")


def test_no_script_is_an_error_of_use():
    got = aegis_run("--loader")
    assert got.returncode == 2
    assert "SCRIPT" in got.stderr

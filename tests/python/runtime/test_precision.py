"""The TF32 switch, over both of torch's sets of settings.

The settings are the process's, and a process that has mixed the sets cannot go back: each test has a forked child.
"""

import contextlib
import os
import traceback

import pytest
import torch
from aegis.runtime import precision, set_tf32, tf32

PLACES = ("cuda.matmul", "cudnn.conv", "cudnn.rnn")


def older():
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    return torch.get_float32_matmul_precision(), matmul.allow_tf32, cudnn.allow_tf32


@pytest.fixture
def in_a_child():
    """Runs a function in a forked child, where nothing but settings is touched."""

    def run(function, *arguments):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                function(*arguments)
                os._exit(0)
            except BaseException:
                os.write(writing, traceback.format_exc().encode()[:60_000])
                os._exit(1)
        os.close(writing)
        with os.fdopen(reading, "rb") as told:
            text = told.read().decode()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, text

    return run


def test_both_sets_agree_after_switching(in_a_child):
    def check():
        for wanted in (True, False, True):
            set_tf32(wanted)
            assert older() == ("high" if wanted else "highest", wanted, wanted)
            assert all((precision()[place] == "tf32") == wanted for place in PLACES)
        with tf32(True):
            with tf32(False):
                assert older() == ("highest", False, False)
            assert older() == ("high", True, True)
        assert older() == ("high", True, True)

    in_a_child(check)


@pytest.mark.parametrize(
    "prepare",
    [
        lambda: None,
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
        lambda: torch.set_float32_matmul_precision("highest"),
    ],
    ids=["as torch has it", "medium", "no TF32 in cudnn", "highest"],
)
@pytest.mark.parametrize("wanted", [False, True])
def test_everything_is_as_before_after_the_block(prepare, wanted, in_a_child):
    def check():
        prepare()
        before, names = precision(), older()
        with contextlib.suppress(KeyError), tf32(wanted):
            assert older() == ("high" if wanted else "highest", wanted, wanted)
            raise KeyError
        assert (precision(), older()) == (before, names)

    in_a_child(check)


@pytest.mark.parametrize("place", ["cuda.matmul", "cudnn.conv", None])
@pytest.mark.parametrize("value", ["tf32", "ieee"])
def test_process_that_uses_fp32_precision_goes_on_with_it(place, value, in_a_child):
    def check():
        where = torch.backends
        for name in place.split(".") if place else ():
            where = getattr(where, name)
        where.fp32_precision = value
        before = precision()
        with tf32(True):
            assert all(precision()[name] == "tf32" for name in PLACES)
        with tf32(False):
            assert all(precision()[name] != "tf32" for name in PLACES)
        assert precision() == before

    in_a_child(check)

import json
import os
import subprocess
import sys

import aegis
import torch
from aegis.cli import main
from aegis.cli.terminal import readable_bytes


def test_report_holds_what_is_asked_in_every_bug_report(capsys):
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["versions"]["aegis"].startswith(aegis.__version__)
    assert report["versions"]["torch"].startswith(torch.__version__)
    assert {"python", "compiler"} <= report["versions"].keys()
    assert report["CPU"]["instruction set"] == aegis.cpu_isa()
    assert report["CPU"]["available"] == ", ".join(aegis.build_info()["isas"])
    assert report["CPU"]["cores"].startswith(f"{len(os.sched_getaffinity(0))} usable")
    assert {"transparent huge pages", "reserved huge pages", "/dev/shm"} <= report["memory"].keys()
    assert {"locked memory", "open files"} <= report["limits"].keys()
    assert report["CUDA"].keys() == {"kernels", "devices"}


def test_text_says_the_same(capsys):
    main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for title, section in report.items():
        assert f"\n{title}\n" in "\n" + text
        assert all(name in text for name in section)
    assert aegis.cpu_isa() in text
    assert "\033" not in text  # no colours where there is no terminal


def test_forced_instruction_set_is_shown():
    command = [sys.executable, "-c", "from aegis.cli import main; main(['doctor', '--json'])"]
    done = subprocess.run(command, env=os.environ | {"AEGIS_FORCE_ISA": "scalar"}, capture_output=True, check=True)
    cpu = json.loads(done.stdout)["CPU"]
    assert cpu["instruction set"] == cpu["AEGIS_FORCE_ISA"] == "scalar"


def test_bytes_are_readable():
    sizes = [0, 1023, 1024, 1536, 5 << 20, 3 << 30, 7 << 40]
    assert [*map(readable_bytes, sizes)] == ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 MiB", "3.0 GiB", "7.0 TiB"]

"""Builds the C++ side with CMake and puts it into the wheel; everything else stands in pyproject.toml."""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
# One build folder for wheels and C++ tests, kept between builds: a change compiles only what it touches.
BUILD = Path(os.environ.get("AEGIS_BUILD_DIR", ROOT / "build" / "cmake"))


class CMakeBuild(build_ext):
    """Configures, builds and installs the CMake project into the package folder."""

    def run(self) -> None:
        package = Path(self.build_lib).resolve() / "aegis"
        configure = [
            "cmake",
            *("-S", str(ROOT), "-B", str(BUILD), "-G", "Ninja"),
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DAEGIS_CUDA={os.environ.get('AEGIS_CUDA', 'AUTO')}",
            *os.environ.get("AEGIS_CMAKE_ARGS", "").split(),
        ]
        subprocess.run(configure, check=True)
        subprocess.run(["cmake", "--build", str(BUILD)], check=True)
        subprocess.run(["cmake", "--install", str(BUILD), "--prefix", str(package)], check=True)

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


setup(ext_modules=[Extension("aegis._C", sources=[])], cmdclass={"build_ext": CMakeBuild})

"""The compiled operators; everything else is in pyproject.toml.

Without a compiler they are left out, and PyTorch's operators serve everything.
"""

from pybind11.setup_helpers import Pybind11Extension
from setuptools import setup

setup(
    ext_modules=[
        Pybind11Extension(
            "nextfit.ops.compiled._kernels",
            ["nextfit/ops/compiled/module.cpp"],
            depends=[
                f"nextfit/ops/compiled/{name}.h"
                for name in ("delta_net", "experts", "hyper", "linear", "vector")
            ],
            cxx_std=17,
            extra_compile_args=["-O3", "-march=native", "-fopenmp"],
            extra_link_args=["-fopenmp"],
            optional=True,
        )
    ]
)

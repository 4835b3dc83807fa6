"""hyad: symbolic differentiation of Hy models, with code generation.

>>> import hyad
>>> f = hyad.model("(fn [x y] (* x (sin y)))")
>>> hyad.grad(f)(2.0, 0.0)
(0.0, 2.0)
"""

from __future__ import annotations

import os as _os

__version__ = "0.1.0"

# Uninstalled or editable, hyad.macros and hyad.codegen stand beside this folder, not in it.
_root = _os.path.dirname(_os.path.dirname(_os.path.abspath(__file__)))
if _os.path.exists(_os.path.join(_root, "pyproject.toml")) and _os.path.isdir(_os.path.join(_root, "codegen")):
    __path__.append(_root)  # type: ignore[name-defined]  # noqa: F821

from .compiling import compile, low_level_callable, run  # noqa: E402
from .derivatives import (  # noqa: E402
    D,
    diff,
    grad,
    hessian,
    hvp,
    jacob,
    jacobian,
    jvp,
    mdiff,
    mgrad,
    value_and_grad,
    vdiff,
    vjp,
)
from .emit import emit  # noqa: E402  (here, or the module would take the function's place)
from .errors import (  # noqa: E402
    BoundsError,
    CompileError,
    DerivativeError,
    DeviceError,
    HyadError,
    ModelTypeError,
    NotCompiled,
    OutOfMemory,
    ReadError,
    UnboundError,
)
from .files import load  # noqa: E402
from .model import Model, define, model  # noqa: E402
from .program.data import defdata, inl, inr, lisp  # noqa: E402
from .stages import show, stages  # noqa: E402

__all__ = [
    "BoundsError", "CompileError", "D", "DerivativeError", "DeviceError", "HyadError", "Model", "ModelTypeError",
    "NotCompiled", "OutOfMemory", "ReadError", "UnboundError", "check_grad", "compile", "cost", "defdata", "define",
    "defprim", "diff", "emit", "explain", "grad", "hessian", "hvp", "inl", "inr", "jacob", "jacobian", "jvp", "lisp",
    "load", "low_level_callable", "mdiff", "mgrad", "model", "optimisations", "run", "show", "sparse_hessian",
    "sparse_jacobian", "stages", "value_and_grad", "vdiff", "vjp",
]  # fmt: skip


def __getattr__(name: str):
    """What is used less often is imported when it is first asked for."""
    homes = {
        "check_grad": "checking",
        "cost": "report",
        "defprim": "program.own_primitives",
        "explain": "report",
        "optimisations": "switches",
        "sparse_hessian": "sparse",
        "sparse_jacobian": "sparse",
    }
    if name in homes:
        from importlib import import_module

        return getattr(import_module(f".{homes[name]}", __name__), name)
    raise AttributeError(f"module 'hyad' has no attribute {name!r}")

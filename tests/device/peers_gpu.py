"""The cases of ``bench.py`` in JAX and PyTorch on the GPU: what to call, by case and library.

Each function takes a case's arguments, moves them there, and gives a call that returns when its result is there.
PyTorch's are compiled by ``torch.compile`` where that works, else eager.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def jax_call(function: Callable[..., Any], args: list[Any]) -> Callable[[], Any]:
    import jax

    compiled, there = jax.jit(function), [jax.device_put(a) for a in args]
    return lambda: jax.block_until_ready(compiled(*there))


def torch_call(function: Callable[..., Any], args: list[Any]) -> Callable[[], Any]:
    import torch

    there = [torch.as_tensor(a, device="cuda") if isinstance(a, np.ndarray) else a for a in args]
    chosen = function
    try:
        compiled = torch.compile(function)
        compiled(*there)
        chosen = compiled
    except Exception:  # what torch.compile cannot do runs eager
        pass

    def call() -> Any:
        out = chosen(*there)
        torch.cuda.synchronize()
        return out

    return call


def jax_numpy() -> Any:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    return jax, jnp


# ------------------------------------------------------------------------------------------- the cases


def wave_jax(args: list[Any]) -> Callable[[], Any]:
    jax, _ = jax_numpy()

    def f(x: Any) -> Any:
        return x * (3.0 - x * x)

    return jax_call(lambda v: (f(v), jax.vmap(jax.grad(f))(v)), args)


def wave_torch(args: list[Any]) -> Callable[[], Any]:
    import torch

    def f(x: Any) -> Any:
        return x * (3.0 - x * x)

    return torch_call(lambda v: (f(v), torch.func.vmap(torch.func.grad(f))(v)), args)


def energy_jax(args: list[Any]) -> Callable[[], Any]:
    jax, jnp = jax_numpy()
    return jax_call(jax.value_and_grad(lambda v: jnp.sum(v * v * jnp.exp(-v))), args)


def energy_torch(args: list[Any]) -> Callable[[], Any]:
    import torch

    return torch_call(torch.func.grad_and_value(lambda v: (v * v * torch.exp(-v)).sum()), args)


def blocks_jax(args: list[Any]) -> Callable[[], Any]:
    jax, _ = jax_numpy()
    from adpeers import Jax
    from adsuite import residuals

    m = Jax()
    return jax_call(jax.vmap(jax.jacrev(lambda p, f: residuals(m, p[None], f[None])[0])), args)


def blocks_torch(args: list[Any]) -> Callable[[], Any]:
    import torch

    from adpeers import Torch
    from adsuite import residuals

    m = Torch()
    one = torch.func.jacrev(lambda p, f: residuals(m, p[None], f[None])[0])
    return torch_call(torch.func.vmap(one), args)


def gmm_jax(args: list[Any]) -> Callable[[], Any]:
    jax, _ = jax_numpy()
    from adpeers import Jax
    from adsuite import gmm

    m = Jax()
    *moving, x, gamma, wishart = args
    return jax_call(jax.grad(lambda a, b, c, x: gmm(m, a, b, c, x, gamma, wishart), argnums=(0, 1, 2)), [*moving, x])


def gmm_torch(args: list[Any]) -> Callable[[], Any]:
    import torch

    from adpeers import Torch
    from adsuite import gmm

    m = Torch()
    *moving, x, gamma, wishart = args
    derivative = torch.func.grad(lambda a, b, c, x: gmm(m, a, b, c, x, gamma, wishart), argnums=(0, 1, 2))
    return torch_call(derivative, [*moving, x])


def product_jax(args: list[Any]) -> Callable[[], Any]:
    jax_numpy()
    return jax_call(lambda a, b: a @ b, args)


def product_torch(args: list[Any]) -> Callable[[], Any]:
    return torch_call(lambda a, b: a @ b, args)


PEERS: dict[str, dict[str, Callable[[list[Any]], Callable[[], Any]]]] = {
    "elementwise value and derivative": {"JAX": wave_jax, "PyTorch": wave_torch},
    "sum of x^2 exp(-x) and its gradient": {"JAX": energy_jax, "PyTorch": energy_torch},
    "bundle adjustment's Jacobian, f64": {"JAX": blocks_jax, "PyTorch": blocks_torch},
    "bundle adjustment's Jacobian, f32": {"JAX": blocks_jax, "PyTorch": blocks_torch},
    "Gaussian mixture's gradient": {"JAX": gmm_jax, "PyTorch": gmm_torch},
    "product of matrices": {"JAX": product_jax, "PyTorch": product_torch},
}

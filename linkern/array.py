"""Array library shim: every call beyond arithmetic, over `array_api_compat`.

This is the only file that imports `array_api_compat`.
"""

import sys
from collections.abc import Sequence
from functools import cache
from math import isfinite
from typing import Any, cast

import array_api_compat
import numpy as np

from linkern.typing import Array, Device, DType, Namespace

__all__ = [
    "all_finite",
    "any_true",
    "astype",
    "broadcast_shapes",
    "broadcast_to",
    "compute_dtype",
    "concat",
    "device_of",
    "dtype_name",
    "eye",
    "from_numpy",
    "is_array",
    "is_captured",
    "is_compiled",
    "is_traced",
    "mT",
    "namespace",
    "namespace_name",
    "of_same_heads",
    "on_cupy",
    "on_jax",
    "on_numpy",
    "on_torch",
    "ones",
    "outer",
    "plain_numpy",
    "reshape",
    "softmax",
    "staged_by_jax",
    "writable",
    "zeros",
]

# NumPy has no bfloat16 of its own and the standard has no half types at all, so
# dtypes are told apart by name: the one thing every library agrees on.
_COMPUTE_NAME = {
    "float16": "float32",
    "bfloat16": "float32",
    "float32": "float32",
    "float64": "float64",
}


# Results of look-ups that every call repeats, for types of arrays that are not traced.
_NAMESPACES: dict[frozenset[type], Namespace] = {}
_COMPUTE_DTYPES: dict[tuple[type, Any], DType | None] = {}


def is_array(x: object) -> bool:
    """Return True if `x` is an array of a library that follows the array API.

    Matrices and masked arrays of NumPy do not: functions of the array API would compute
    with the entries that a mask hides.
    """
    if type(x) is np.ndarray or frozenset({type(x)}) in _NAMESPACES:
        return True
    if isinstance(x, np.ma.MaskedArray | np.matrix):
        return False
    return bool(array_api_compat.is_array_api_obj(x))


def on_numpy(*arrays: object) -> bool:
    """Return True if all arrays are NumPy's, None, or traced over NumPy's."""
    for x in arrays:
        if type(x) is np.ndarray or x is None:
            continue
        if not isinstance(getattr(x, "untraced", x), np.ndarray):
            return False
    return True


def plain_numpy(*arrays: object) -> bool:
    """Return True if all arrays are NumPy's own: none is traced, or of a subclass."""
    return all(type(x) is np.ndarray for x in arrays)


def on_cupy(*arrays: object) -> bool:
    """Return True if all arrays are CuPy's, None or traced; at least one is CuPy's."""
    plain = [getattr(x, "untraced", x) for x in arrays if x is not None]
    return bool(plain) and all(map(array_api_compat.is_cupy_array, plain))


def on_jax(x: object) -> bool:
    """Return True if `x` is an array of JAX, or stands for one under `jax.jit`."""
    return type(x) is not np.ndarray and bool(array_api_compat.is_jax_array(x))


def on_torch(x: object) -> bool:
    """Return True if `x` is a tensor of PyTorch."""
    return type(x) is not np.ndarray and bool(array_api_compat.is_torch_array(x))


def staged_by_jax(*arrays: object) -> bool:
    """Return True if JAX traces an array: differentiates, compiles or vectorises."""
    return any("Tracer" in type(x).__name__ for x in arrays)


def namespace(*arrays: Array) -> Namespace:
    """Return the array API namespace of `arrays`; `TypeError` if they mix libraries.

    One traced array (`linkern.autodiff.tape`) makes the whole expression traced:
    its namespace comes before that of the library below it.
    """
    types = frozenset(map(type, arrays))
    known = _NAMESPACES.get(types)
    if known is not None:
        return known
    plain = [getattr(x, "untraced", x) for x in arrays]
    library = array_api_compat.array_namespace(*plain)
    traced = [x for x, y in zip(arrays, plain, strict=True) if x is not y]
    if traced:
        return traced[0].__array_namespace__()  # type: ignore[attr-defined]
    for x in plain:
        # Remembered below, the type would count as one of arrays from then on.
        if isinstance(x, np.ndarray) and not is_array(x):
            msg = f"{type(x).__name__} is not a supported array type"
            raise TypeError(msg)
    # Asking costs as much as a small operation, and forms ask for every chunk.
    return _NAMESPACES.setdefault(types, library)


def namespace_name(x: Array) -> str:
    """Return the library of `x` as users import it: ``"numpy"``, ``"torch"``, ..."""
    name = cast(str, namespace(x).__name__)
    return name.removeprefix("array_api_compat.").partition(".")[0]


def dtype_name(dtype: DType) -> str:
    """Return the bare name of a dtype: ``"float32"``, ``"bfloat16"``, ``"int64"``."""
    # The type comes first: dtypes of two libraries do not like to be compared.
    kind: Any = type(dtype)
    return _spelled(kind, dtype)


@cache  # NumPy spells a name out each time, and every check asks for one
def _spelled(_: Any, dtype: DType) -> str:
    return str(getattr(dtype, "name", dtype)).rpartition(".")[2]


def compute_dtype(x: Array) -> DType | None:
    """Return the dtype to accumulate in: float32 or wider; None if `x` is no float."""
    key = type(getattr(x, "untraced", x)), x.dtype
    if key not in _COMPUTE_DTYPES:
        name = _COMPUTE_NAME.get(dtype_name(x.dtype))
        wide = None if name is None else getattr(namespace(x), name)
        # Libraries compare a dtype with itself faster than with another spelling.
        _COMPUTE_DTYPES[key] = x.dtype if x.dtype == wide else wide
    return _COMPUTE_DTYPES[key]


def device_of(x: Array) -> Device | None:
    """Return the device of `x`; None while JAX traces, when it is not yet known."""
    return array_api_compat.device(x)


def astype(x: Array, dtype: DType) -> Array:
    """Return `x` as `dtype`: itself if it already is."""
    if x.dtype == dtype:
        return x
    return cast(Array, namespace(x).astype(x, dtype, copy=False))


def from_numpy(x: Any, *, like: Array) -> Array:
    """Return an array of NumPy in the library, dtype and device of `like`."""
    # NumPy has no half types of other libraries, and some devices have no float64.
    known = "float64" if dtype_name(like.dtype) == "float64" else "float32"
    xp = namespace(like)
    made = xp.asarray(np.asarray(x, known), device=device_of(like))
    return astype(made, like.dtype)


def mT(x: Array) -> Array:  # noqa: N802 -- the array API's own name
    """Swap the last two axes."""
    if type(x) is np.ndarray:  # steps of decoding are as short as asking for a library
        return x.swapaxes(-1, -2)
    return cast(Array, namespace(x).matrix_transpose(x))


def outer(row: Array, other: Array) -> Array:
    """Return ``row^T other (..., K, V)`` for ``(..., 1, K)`` and ``(..., 1, V)``."""
    if type(row) is not np.ndarray or type(other) is not np.ndarray:
        return mT(row) @ other
    # NumPy hands a product over one index to no BLAS. One over two, of which the second
    # adds zeros, takes a tenth of the time and has the same bits.
    columns = np.zeros((*row.shape[:-2], row.shape[-1], 2), row.dtype)
    rows = np.zeros((*other.shape[:-2], 2, other.shape[-1]), other.dtype)
    columns[..., :1], rows[..., :1, :] = row.swapaxes(-1, -2), other
    return columns @ rows


def concat(arrays: Sequence[Array], axis: int) -> Array:
    """Join arrays along an axis that exists."""
    return cast(Array, namespace(*arrays).concat(list(arrays), axis=axis))


def broadcast_to(x: Array, shape: tuple[int, ...]) -> Array:
    """Repeat `x` to a shape, without copying where the library can."""
    if tuple(x.shape) == shape:
        return x
    return cast(Array, namespace(x).broadcast_to(x, shape))


def any_true(x: Any) -> bool:
    """Return True if any entry is known to be true.

    JAX and the compiler of PyTorch trace, Dask plans, and a stream records a graph:
    there, rules about values cannot be checked, and asking would fail or compute
    everything twice. Nothing is known of them.
    """
    if type(x) is np.ndarray:
        return bool(np.count_nonzero(x))  # `any` takes five times as long for a few
    if is_compiled(x) or is_captured(x) or _has_no_values(x):
        return False
    return bool(namespace(x).any(x))


def is_compiled(x: Any) -> bool:
    """Return True for a tensor while the compiler of PyTorch traces a call."""
    if type(x).__module__.partition(".")[0] != "torch":
        return False
    return bool(sys.modules["torch"].compiler.is_compiling())


def is_captured(x: Any) -> bool:
    """Return True for an array of a library whose stream records a CUDA graph."""
    package = type(x).__module__.partition(".")[0]
    if package == "cupy":
        stream = sys.modules["cupy"].cuda.get_current_stream()
        return bool(stream.is_capturing())
    if package == "torch" and x.is_cuda:
        return bool(sys.modules["torch"].cuda.is_current_stream_capturing())
    return False


def _has_no_values(x: Any) -> bool:
    kind = type(x).__name__
    if "Tracer" in kind or kind == "FakeTensor":
        return True
    return bool(array_api_compat.is_dask_array(x))


def is_traced(*arrays: object) -> bool:
    """Return True if an array remembers how it was made (`linkern.autodiff.tape`)."""
    return any(getattr(x, "untraced", x) is not x for x in arrays)


def all_finite(x: Any) -> bool | None:
    """Return True if all entries are finite, False if not, None if it is not known.

    Nothing is known while JAX traces, Dask plans and PyTorch compiles or vectorises;
    nor on a GPU, for which the caller would have to wait. A sum that overflows counts
    as an entry that is not finite.
    """
    if type(x) is np.ndarray:
        return bool(np.isfinite(x).all())
    if array_api_compat.is_torch_array(x):
        return _all_finite_in_torch(x)
    if array_api_compat.is_dask_array(x) or "Tracer" in type(x).__name__:
        return None
    if "cpu" not in str(device_of(x)).lower():
        return None
    xp = namespace(x)
    return bool(xp.all(xp.isfinite(x)))


def _all_finite_in_torch(x: Any) -> bool | None:
    if x.device.type != "cpu" or namespace(x).compiler.is_compiling():
        return None
    try:  # one sum takes a tenth of the time of a look at each entry
        return isfinite(x.detach().sum().item())
    except RuntimeError:  # `torch.vmap` and fake tensors refuse to be looked at
        return None


def writable(*arrays: Array) -> bool:
    """Return True if the first array may be written to, with numbers of the others.

    Not in libraries whose arrays never change, and not while PyTorch keeps what
    gradients need.
    """
    if any(getattr(x, "requires_grad", False) for x in arrays):
        return False
    return bool(array_api_compat.is_writeable_array(arrays[0]))


def reshape(x: Array, shape: tuple[int, ...]) -> Array:
    """Return `x` in another shape of the same size."""
    return cast(Array, namespace(x).reshape(x, shape))


def of_same_heads(*arrays: Array) -> bool:
    """Return True if all axes but the last two are equal: no row has several heads.

    The gradient of a row that does is a sum, and should not be rounded on the way.
    """
    return len({tuple(x.shape[:-2]) for x in arrays}) == 1


def softmax(x: Array) -> Array:
    """Return weights over the last axis, which the standard has no function for."""
    xp = namespace(x)
    weights = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return cast(Array, weights / xp.sum(weights, axis=-1, keepdims=True))


def eye(size: int, *, like: Array) -> Array:
    """Identity matrix of the library, dtype and device of `like`."""
    xp = namespace(like)
    return cast(Array, xp.eye(size, dtype=like.dtype, device=device_of(like)))


def zeros(shape: tuple[int, ...], *, like: Array) -> Array:
    """Zeros of the library, dtype and device of `like`."""
    if type(like) is np.ndarray:
        return np.zeros(shape, like.dtype)
    return cast(
        Array, namespace(like).zeros(shape, dtype=like.dtype, device=device_of(like))
    )


def ones(shape: tuple[int, ...], *, like: Array) -> Array:
    """Ones of the library, dtype and device of `like`."""
    if type(like) is np.ndarray:
        return np.ones(shape, like.dtype)
    return cast(
        Array, namespace(like).ones(shape, dtype=like.dtype, device=device_of(like))
    )


def broadcast_shapes(*shapes: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the shape that `shapes` broadcast to; `ValueError` if they do not."""
    # Nearly always they are one shape, and NumPy takes its time to find that out.
    if shapes and shapes.count(shapes[0]) == len(shapes):
        return tuple(shapes[0])
    # Shapes are tuples of integers in every library, so NumPy can do this for all.
    return np.broadcast_shapes(*shapes)

"""Decoding on a GPU: the state is updated where it lies, and a step can be replayed.

A step of a small batch takes less time than its launch from Python; recorded once, it
is launched again without either.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from linkern import validate
from linkern.feature_maps import elu_plus_one
from linkern.kernels.cuda.forward import feature_map_name
from linkern.kernels.cuda.launch import Array, Device, Launch
from linkern.kernels.cuda.plan import decode
from linkern.state import State
from linkern.typing import FeatureMapFunction
from linkern.validate import decoder as checks

__all__ = ["CudaDecoder"]


class CudaDecoder:
    """Decoding on a GPU, with one kernel for each token.

    Parameters
    ----------
    device : Device
        Where states and tokens are.
    state, batch_shape, key_dim, value_dim, feature_map, normalize, scale
        As in `linkern.Decoder`; the feature map is one of those that kernels know.
    dtype : {"float16", "bfloat16", "float32", "float64"}, optional
        Of the tokens and the outputs.
    window : None
        There is none.
    """

    def __init__(
        self,
        device: Device,
        state: State | None = None,
        *,
        batch_shape: tuple[int, ...] = (),
        key_dim: int | None = None,
        value_dim: int | None = None,
        dtype: Any = None,
        feature_map: FeatureMapFunction = elu_plus_one,
        normalize: bool = True,
        scale: float | None = None,
        window: None = None,
    ) -> None:
        normalize = validate.flag("normalize", normalize)
        checks.no_window(window)
        self._device, self._scale = device, validate.scale(scale)
        self._feature_map = feature_map_name(feature_map)
        asked, of_state = (batch_shape, key_dim, value_dim), None
        if state is None:
            sizes = checks.sizes(*asked)
        else:
            options: Any = {"normalize": normalize, "library": device.library}
            sizes = checks.sizes_of(state, *asked, **options)
            of_state = state.memory.dtype
        self._dtype = checks.token_dtype(dtype, of_state, checks.GPU_DTYPES)
        self._batch, features, values = sizes
        self._key_shape = (*self._batch, features)
        self._value_shape = (*self._batch, values)
        shape = (math.prod(self._batch), features, values)
        wide = np.result_type(self._dtype, np.float32)
        self._state = decode.zeros(device, *shape, wide, normalize=normalize)
        if state is not None:
            self._state.fill(state.memory, state.normalizer)
        self._planned: tuple[Any, Launch] | None = None

    @property
    def state(self) -> State:
        """The state after the last token: a copy."""
        held, batch = self._state, self._batch
        memory = held.memory[..., : held.values].copy()
        memory = memory.reshape(*batch, *memory.shape[1:])
        if held.normalizer is None:
            return State(memory, None)
        normalizer = held.normalizer[:, 0].copy()
        return State(memory, normalizer.reshape(*batch, normalizer.shape[-1]))

    @property
    def nbytes(self) -> int:
        """Bytes of the state, spare columns included: constant."""
        memory, normalizer, _ = self._state
        return int(memory.nbytes + (0 if normalizer is None else normalizer.nbytes))

    def copy(self) -> "CudaDecoder":
        """Return a decoder that goes on from here on its own."""
        fork = object.__new__(type(self))
        fork.__dict__.update(self.__getstate__())
        return fork

    def __getstate__(self) -> dict[str, Any]:
        # Launches know where the state of this decoder lies, and not of its copy.
        return {**self.__dict__, "_state": self._state.copy(), "_planned": None}

    def step(
        self, query: Array, key: Array, value: Array, out: Array | None = None
    ) -> Array:
        """Enqueue one token, as `linkern.Decoder.step`.

        Entries of the last axis are contiguous, and `out` may be `value`, but shares
        memory with no other input.
        """
        library = self._device.library
        checks.token("query", query, self._dtype, self._key_shape, library=library)
        checks.token("key", key, self._dtype, self._key_shape, library=library)
        checks.token("value", value, self._dtype, self._value_shape, library=library)
        if out is None:
            out = self._device.empty(self._value_shape, self._dtype)
        else:
            checks.output(out, self._dtype, self._value_shape, library=library)
        if math.prod(self._batch):
            self._device.launch(self._launch(query, key, value, out))
        return out

    def captured(
        self, query: Array, key: Array, value: Array, out: Array
    ) -> Callable[[], None]:
        """Record a step as a CUDA graph, as `linkern.Decoder.captured`."""
        # Kernels are compiled and loaded by their first launch, and cannot be while a
        # stream is captured.
        self.copy().step(query, key, value, self._device.empty(out.shape, out.dtype))
        arrays = (query, key, value, out)
        replay = self._device.captured(lambda: self.step(*arrays))
        return partial(_replayed, replay, self, *arrays)

    def _launch(self, *arrays: Any) -> Launch:
        """Return the launch for some arrays: that of the last step, if it had them."""
        places = [(self._device.address(x), x.strides) for x in arrays]
        if self._planned is None or self._planned[0] != places:
            launch = decode.plan(
                self._device,
                self._state,
                *arrays,
                feature_map=self._feature_map,
                scale=self._scale,
            )
            self._planned = places, launch
        return self._planned[1]


def _replayed(replay: Callable[[], None], *_: object) -> None:
    """Replay a graph, which has only addresses of what the other arguments hold."""
    replay()

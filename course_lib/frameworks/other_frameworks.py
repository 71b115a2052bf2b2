"""Lesson 10's LSTM in TensorFlow and in JAX. Each framework is imported only when a function needs it.

The frameworks exchange weights as five arrays in Keras's layout: the LSTM's kernel (features, 4 hidden), its recurrent
kernel (hidden, 4 hidden) and bias (4 hidden,), then the kernel and the bias of the linear layer after it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import socket
import struct
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from course_lib.runtime import machine

Weights = list[np.ndarray]
LIMITS = (1e-10, 1e-5, 1e-3)
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "GRPC_VERBOSITY": "NONE"}


def get_ready(replicas: int = 2, devices: int = 4) -> None:
    """Import both frameworks without their log messages, and split the CPU into several devices for each of them.

    TensorFlow gets `replicas` devices; JAX gets `devices`, and float64. Call this before either is first used.
    """
    missing = [name for name in ("tensorflow", "jax") if importlib.util.find_spec(name) is None]
    if missing:
        names = " and ".join(missing)
        raise ImportError(f"not installed here: {names}. Run %pip install 'course-lib[frameworks]', then restart")
    for name in ("tensorflow", "jax"):
        import_quietly(name)
    import tensorflow

    processor = tensorflow.config.list_physical_devices("CPU")[0]
    if tensorflow.config.get_logical_device_configuration(processor) is None:
        device = tensorflow.config.LogicalDeviceConfiguration()
        tensorflow.config.set_logical_device_configuration(processor, [device] * replicas)
        tensorflow.config.threading.set_intra_op_parallelism_threads(machine.threads_per_rank(replicas))
        tensorflow.config.threading.set_inter_op_parallelism_threads(replicas)
    tensorflow.get_logger().setLevel("ERROR")
    tensorflow.keras.utils.set_random_seed(0)
    prepare_jax(devices)


def import_quietly(name: str) -> None:
    """Import a framework without its log messages, which are shown only if the import fails.

    The variables in `QUIET` don't silence the C++ code that looks for GPUs during the import.
    """
    for variable, value in QUIET.items():
        os.environ.setdefault(variable, value)
    with tempfile.TemporaryFile() as log:
        stderr = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            importlib.import_module(name)
        except BaseException:
            log.seek(0)
            os.write(stderr, log.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


SO_ATTACH_FILTER = 26
NETWORK_HEADER = -0x100000 & 0xFFFFFFFF  # offset at which a filter finds the packet's network-layer header
LOAD_BYTE, RIGHT_SHIFT, JUMP_IF_EQUAL, ANSWER = 0x30, 0x74, 0x15, 0x06
FROM_THIS_MACHINE = (  # code, jump if true, jump if false, value
    (LOAD_BYTE, 0, 0, NETWORK_HEADER),
    (RIGHT_SHIFT, 0, 0, 4),
    (JUMP_IF_EQUAL, 0, 3, 4),  # drop anything except IPv4
    (LOAD_BYTE, 0, 0, NETWORK_HEADER + 12),  # the first byte of the source address
    (JUMP_IF_EQUAL, 0, 1, 127),
    (ANSWER, 0, 0, 0xFFFFFFFF),  # keep the packet
    (ANSWER, 0, 0, 0),  # drop it
)


def only_this_machine() -> None:
    """Make the server that TensorFlow is about to start answer only this machine (on Linux). Also hides its warnings.

    The server listens on all of the machine's addresses and obeys any caller, and no option changes that. But Linux
    lets a process attach a filter to its sockets.
    """
    import tensorflow
    from tensorflow.python.eager import context as eager

    tensorflow.get_logger().setLevel("ERROR")
    context: Any = eager.context()
    begin = context.ensure_initialized

    def begin_and_filter() -> None:
        context.ensure_initialized = begin
        begin()  # starts the server
        if not sys.platform.startswith("linux"):
            return
        code = b"".join(struct.pack("HBBI", *instruction) for instruction in FROM_THIS_MACHINE)
        instructions = ctypes.create_string_buffer(code)
        program = struct.pack("HL", len(FROM_THIS_MACHINE), ctypes.addressof(instructions))
        for sock in machine.internet_sockets():
            if machine.is_listening(sock):
                sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)

    context.ensure_initialized = begin_and_filter


def prepare_jax(devices: int) -> None:
    """Import JAX with float64, and with this many devices on the CPU of this machine."""
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)  # JAX accepts this again if the number is the same


def keras_model(weights: Weights, dtype: str = "float64") -> Any:
    """Return a Keras LSTM and linear layer: (sequences, steps, features) to (sequences, steps, 1)."""
    import tensorflow

    features, hidden = weights[0].shape[0], weights[1].shape[0]
    layers = tensorflow.keras.layers
    model = tensorflow.keras.Sequential(
        [
            tensorflow.keras.Input((None, features), dtype=dtype),
            layers.LSTM(hidden, return_sequences=True, dtype=dtype),
            layers.Dense(1, dtype=dtype),
        ]
    )
    model.set_weights(weights)
    return model


def jax_layer(weights: Sequence[Any], inputs: Any, state: tuple[Any, Any]) -> tuple[tuple[Any, Any], Any]:
    """One LSTM layer over (steps, sequences, features): its last state, and (steps, sequences, hidden) outputs."""
    import jax

    kernel, recurrent_kernel, bias = weights

    def step(state: tuple[Any, Any], now: Any) -> tuple[tuple[Any, Any], Any]:
        h, c = state
        i, f, g, o = jax.numpy.split(now @ kernel + h @ recurrent_kernel + bias, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jax.numpy.tanh(g)
        h = jax.nn.sigmoid(o) * jax.numpy.tanh(c)
        return (h, c), h

    return jax.lax.scan(step, state, inputs)


def jax_model(weights: Sequence[Any], inputs: Any) -> Any:
    """Return the outputs of `keras_model`, as a function of its weights."""
    import jax

    zeros = 0 * inputs[:, 0, :1]  # made from the inputs, so that it is on the same devices
    start = jax.numpy.repeat(zeros, len(weights[1]), axis=1)
    _, outputs = jax_layer(weights[:3], inputs.swapaxes(0, 1), (start, start))
    return outputs.swapaxes(0, 1) @ weights[3] + weights[4]


def wavefront(weights: Sequence[Any], chunks: Any) -> Any:
    """On a device of the mesh's axis "stage": its layer over (chunks, steps, sequences, hidden), tick by tick.

    In each tick a stage takes a chunk of time: the first stage from the input, the others from the previous stage.
    Returns every tick's outputs, (1, ticks, steps, sequences, hidden): stage s works on chunk c in tick s + c.
    """
    import jax

    layer = [weight[0] for weight in weights]  # its slice of all layers' weights: one layer
    stage, stages, count = jax.lax.axis_index("stage"), jax.lax.axis_size("stage"), len(chunks)

    def tick(carried: tuple, now: Any) -> tuple:
        state, received = carried
        chunk = jax.numpy.where(stage == 0, chunks[jax.numpy.minimum(now, count - 1)], received)
        after, outputs = jax_layer(layer, chunk, state)
        at_work = (now >= stage) & (now < stage + count)
        state = jax.tree.map(lambda new, old: jax.numpy.where(at_work, new, old), after, state)
        return (state, jax.lax.ppermute(outputs, "stage", [(s, s + 1) for s in range(stages - 1)])), outputs

    nothing = jax.lax.pcast(jax.numpy.zeros_like(chunks[0]), "stage", to="varying")  # differs from stage to stage
    start = ((nothing[0], nothing[0]), nothing)
    _, outputs = jax.lax.scan(tick, start, jax.numpy.arange(count + stages - 1))
    return outputs[None]


def closeness(first: Sequence[Any], second: Sequence[Any]) -> str:
    """Describe how closely two lists of arrays agree, in words that are the same on every machine."""
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(first, second, strict=True)]
    if any(a.shape != b.shape for a, b in pairs):
        return f"differs in shape: {[a.shape for a, _ in pairs]} and {[b.shape for _, b in pairs]}"
    difference = np.max([np.abs(a - b).max() for a, b in pairs])  # NaN if any number is NaN
    limit = next((limit for limit in LIMITS if difference < limit), None)
    return f"differs by {difference:.3f}" if limit is None else f"equal to {limit:.0e}"

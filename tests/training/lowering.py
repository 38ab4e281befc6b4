"""Lowering of a step's XLA-compiled parts for the GPU platform; `test_gpu_lowering.py` runs it in an environment with TensorFlow's GPU build."""

import os
import sys

os.environ |= {"DLRM_BUILD_FOR": "GPU", "DLRM_NATIVE_OPS": "0"}
sys.path.append(sys.argv[1])  # the packages that the environment lacks

from utils.runtime import prepare_tensorflow

prepare_tensorflow()

import tensorflow as tf  # noqa: E402
from tensorflow.python.framework.kernels import get_registered_kernels_for_op  # noqa: E402

from model.layers.dense import LayerWeights  # noqa: E402
from tests.model.tiny_model import batch, model_and_trainer  # noqa: E402

STAGE = {"stage": "hlo", "platform_name": "GPU"}


def calls_of(trainer) -> dict[str, tuple]:
    """Return the parts that XLA compiles, by name: the function, and the arguments that the trainer's step calls it with."""
    calls = {}

    def noting(part, function):
        def noted(*arguments):
            calls[part] = function, tf.nest.map_structure(blank, arguments)
            return function(*arguments)

        return noted

    for part in ("_dense", "_check", "_apply"):
        setattr(trainer, part, noting(part, getattr(trainer, part)))
    trainer.graph(batch(16).inputs)
    return calls


def dense_part(model, trainer, arguments) -> str:
    """Return the HLO of the forward and backward pass. Without a device, variables cannot be arguments, so the weights' values are."""
    values = [tf.convert_to_tensor(weight.value) for weight in model.dense_weights().values()]

    def computed(values, arguments):
        given = iter(values)
        kernels = [(tf.cast(next(given), layer.compute_dtype), next(given)) for mlp in (model.bottom_mlp, model.top_mlp) for layer in mlp.stack]
        transposed = [tf.transpose(kernel) if kernel.dtype == tf.float32 else None for kernel, _ in kernels]
        layers = [LayerWeights(kernel, bias, other) for (kernel, bias), other in zip(kernels, transposed, strict=True)]
        model.step_weights = lambda: layers
        return trainer.dense_part(*arguments)

    function = tf.function(computed, autograph=False, jit_compile=True)
    return function.experimental_get_compiler_ir(values, made(arguments))(**STAGE)


def without_kernel(function, arguments) -> list[str]:
    """Return the operations of a function that XLA cannot compile for a GPU."""
    graph, missing = function.get_concrete_function(*made(arguments)).graph, []
    for op in graph.get_operations():
        kernels = [one for one in get_registered_kernels_for_op(op.type).kernel if one.device_type == "XLA_GPU_JIT"]
        dtypes = {attribute.name: op.get_attr(attribute.name).as_datatype_enum for attribute in op.op_def.attr if attribute.type == "type"}
        takes = (all(dtypes[c.name] in c.allowed_values.list.type for c in kernel.constraint if c.name in dtypes) for kernel in kernels)
        if op.type not in ("Placeholder", "PartitionedCall", "StatefulPartitionedCall") and not any(takes):
            missing.append(f"{op.type}({op.name})")
    return missing


def made(arguments):
    return tf.nest.map_structure(lambda value: value() if callable(value) else value, arguments)


def blank(value):
    """Return a function that makes a zero tensor of a tensor's shape and dtype; return other values unchanged."""
    return (lambda: tf.zeros(value.shape, value.dtype)) if tf.is_tensor(value) else value


def main() -> None:
    """Print a line per model: dtype, optimizer, products in the dense part, lines of the check, and operations of the update that lack a kernel."""
    print(tf.__version__, tf.test.is_built_with_cuda())
    for dtype in ("float32", "float16", "bfloat16"):
        for optimizer in ("sgd", "adagrad", "adam", "ftrl", "rmsprop"):
            model, trainer = model_and_trainer("--xla", "--optimizer", optimizer, "--gradient_slices", "1", dtype=dtype)
            calls = calls_of(trainer)
            check, arguments = calls["_check"]
            lines = check.experimental_get_compiler_ir(*made(arguments))(**STAGE).splitlines()
            missing = without_kernel(*calls["_apply"])
            products = dense_part(model, trainer, calls["_dense"][1]).count(" dot(")
            print(dtype, optimizer, products, len(lines), *missing)


if __name__ == "__main__":
    main()

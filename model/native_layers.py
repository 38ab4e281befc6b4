"""The C++ operations of single kinds of layers; `native.NativeOperations` holds them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

_FEW_ROWS = 256  # of a product that packs its matrix itself: with more rows, packing it once for all products of a step is faster


class Mask(NamedTuple):
    """The dropout mask of a layer in a step: it drops the units whose random bits are below the threshold; see `layers.dropout.Dropout`."""

    key: int  # the generator's key, below 2^32
    threshold: int  # below 2^32
    scale: float  # factor of the units that are kept
    step: object  # int64 scalar tensor
    first: object  # int64 scalar tensor: the number of the first sample in the global batch

    def attributes(self) -> dict[str, float]:
        """Return the attributes of the operations that apply it."""
        return {"key": self.key, "threshold": self.threshold, "scale": self.scale}


class NormOperations:
    """The passes of batch normalisation over memory, see `ops/batch_norm.h`; `NativeOperations.norm` holds them."""

    def __init__(self, library):
        self._library = library

    def column_moments(self, products, real):
        """Return the sums of each column of products `[b, out]` and of its squares, each row times its weight `real` `[b]`: `[2, out]` float64."""
        return self._library.dlrm_column_moments(products=products, real=real)

    def normalise_relu(self, products: Sequence, factors, mask: Mask | None):
        """Return `relu((products - factors[0]) * factors[1] + factors[2])`, `[b, out]`, for consecutive parts of the products.

        `factors` is `[3, out]`. With a mask, dropout follows as in `bias_relu_dropout`.
        """
        import tensorflow as tf

        place, drops = (tf.zeros([2], tf.int64), {}) if mask is None else (tf.stack([mask.step, mask.first]), mask.attributes())
        return self._library.dlrm_normalise_relu(factors=factors, place=place, products=list(products), **drops)

    def normalise_gradient_sums(self, rows: Sequence, moments, scale: float):
        """Return the gradients of the normalisation with respect to beta and gamma, `[2, out]` float32; see `ops/batch_norm.h`.

        Args:
            rows: the gradient with respect to the outputs, the outputs and the products, `[b, out]` each, and the weights `[b]`.
            moments: the mean and 1 / sqrt(variance + epsilon), `[2, out]` float64.
            scale: the scale of the mask; 1 without dropout.
        """
        return self._library.dlrm_normalise_gradient_sums(*rows, moments=moments, scale=scale)

    def normalise_gradient(self, rows: Sequence, factors, scale: float):
        """Return the gradient by the products, `[b, out]`: `g * factors[1] + weight * ((products - factors[0]) * factors[2] + factors[3])`.

        g is the gradient before the ReLU; padding gets 0. `factors` is `[4, out]`; `rows` and `scale` as in `normalise_gradient_sums`.
        """
        return self._library.dlrm_normalise_gradient(*rows, factors=factors, scale=scale)


class VectorOperations:
    """The passes over all features' vectors (`layers.fields`, `layers.gate`) and FinalMLP's fusion; `NativeOperations.vectors` holds them."""

    def __init__(self, library):
        self._library = library

    def fields(self, numerical, kernel, embeddings, by_kernel: Callable | None, dtype: str | None, **wanted):
        """Return the outputs of `layers.fields.fields`, with their gradients.

        Args:
            numerical: `[b, M]` float32.
            kernel: the numerical features' vectors, `[M, D]`.
            embeddings: `[b, F D]` or `[b, F D + F]`.
            by_kernel: returns the gradient by the kernel, given that by its products with the values, `[b, M, D]`; None without numerical features.
            dtype: the dtype of the vectors side by side; None where they are not needed.
            wanted: the other attributes of `layers.fields.Wanted`.
        """
        import tensorflow as tf

        @tf.custom_gradient
        def found(kernel, embeddings):
            inputs = {"numerical": numerical, "kernel": kernel, "embeddings": embeddings, "joins": dtype is not None, **wanted}
            joined, sums, total, picked = self._library.dlrm_fields(**inputs, U=dtype or "float32")

            def gradient(by_joined, by_sums, by_picked):
                upstream = {"joined": by_joined, "sums": by_sums, "total": total, "picked": by_picked}
                by_scaled, by_embeddings = self._library.dlrm_fields_gradient(**inputs, **upstream)
                scaled = tf.reshape(by_scaled, [-1, *kernel.shape])
                return tf.zeros_like(kernel) if by_kernel is None else by_kernel(scaled), by_embeddings

            return (joined, sums, picked), gradient

        return found(kernel, embeddings)

    def gated(self, inputs, logits: Sequence, dtype: str) -> list:
        """Compute `layers.gate.gated` with its gradients."""
        import tensorflow as tf

        @tf.custom_gradient
        def weighed(inputs, *logits):
            def gradient(*upstream):
                by_inputs, by_logits = self._library.dlrm_gate_gradient(inputs=inputs, logits=logits, upstream=upstream)
                return by_inputs, *by_logits

            return tuple(self._library.dlrm_gate(inputs=inputs, logits=logits, T=dtype)), gradient

        return list(weighed(inputs, *logits))

    def fused(self, left, right, linear, bias, kernels: Sequence, slices: int):
        """Compute the logits of FinalMLP's fusion, `[b]` float32, with their gradients; see `ops/fusion.h`.

        Args:
            left, right: the streams' outputs, `[b, d_1]` and `[b, d_2]`.
            linear: the linear weights, `[d_1 + d_2, 1]` float32.
            bias: `[1]` float32.
            kernels: the heads' kernels, `[d_1 / H, d_2 / H]` each, in the dtype of the outputs.
            slices: the number of equal slices of the samples; their gradients of the weights are summed pairwise.
        """
        import tensorflow as tf

        @tf.custom_gradient
        def logits(left, right, linear, bias, *kernels):
            inputs = {"x": left, "z": right, "linear": linear, "bias": bias, "kernels": kernels}

            def gradient(upstream):
                *found, by_kernels = self._library.dlrm_fuse_gradient(**inputs, upstream=upstream, slices=slices)
                return *found, *by_kernels

            return self._library.dlrm_fuse(**inputs), gradient

        return logits(left, right, linear, bias, *kernels)


class CrossOperations:
    """The passes of cross layers over memory, see `ops/cross.h`; `NativeOperations.cross` holds them."""

    def __init__(self, library):
        self._library = library

    def outputs(self, first, products, bias, last):
        """Return `first * (products + bias) + last`, `[b, d]`, computed in float32 and rounded once; the bias is `[d]` float32."""
        return self._library.dlrm_cross(first=first, products=products, last=last, bias=bias)

    def gradients(self, first, products, bias, upstream: Sequence, known: Sequence, last_is_first: bool) -> tuple:
        """Return the gradients of `outputs` with respect to `last`, the products, and `first`, `[b, d]` each, and to the bias, `[d]` float32.

        Args:
            first, products, bias: the arguments of `outputs`.
            upstream: one or two arrays, whose sum is the gradient with respect to the outputs.
            known: none, or an array that the gradient with respect to `first` is added to.
            last_is_first: `last` is `first`: its gradient is added to that of `first`, too.
        """
        return tuple(
            self._library.dlrm_cross_gradient(
                first=first, products=products, upstream=list(upstream), known=list(known), bias=bias, last_is_first=last_is_first
            )
        )


class PackedKernel(NamedTuple):
    """A dense layer's kernel as the processor's matrix tiles read it, prepared once for all products of a step."""

    kernel: object  # tensor, the kernel itself, `[in, out]` float32, for products with a few rows
    forward: object  # tensor, for products with the kernel
    backward: object  # tensor, for products with the transposed kernel


class ProductOperations:
    """The products of dense layers by the processor's matrix tiles, see `ops/products.h`; `NativeOperations.products` holds them."""

    def __init__(self, library):
        self._library = library

    def packed(self, kernel, dtype: str) -> PackedKernel:
        """Return a kernel `[in, out]` float32 for products in a compute dtype, float32 or bfloat16."""
        forms = (self._library.dlrm_pack_matrix(matrix=kernel, transposed=transposed, T=dtype) for transposed in (False, True))
        return PackedKernel(kernel, *forms)

    def product(self, inputs, packed: PackedKernel, bias=None, relu: bool = False, transposed: bool = False):
        """Return inputs times a kernel, plus the bias `[out]`, perhaps with a ReLU: `[b, in] -> [b, out]`.

        With `transposed`, times the transposed kernel: `[b, out] -> [b, in]`.
        """
        biases, rows = [] if bias is None else [bias], inputs.shape[0]
        if rows is not None and rows <= _FEW_ROWS:
            return self._library.dlrm_multiply_matrix(x=inputs, matrix=packed.kernel, bias=biases, relu=relu, transposed=transposed)
        matrix, columns = (packed.backward, packed.kernel.shape[0]) if transposed else (packed.forward, packed.kernel.shape[1])
        return self._library.dlrm_multiply(x=inputs, packed=matrix, bias=biases, columns=columns, relu=relu)

    def by_kernel(self, inputs, upstream, slices: int = 1):
        """Return the gradient with respect to the kernel, `[in, out]` float32: the sums of equal slices of samples, added in pairs.

        `inputs` is `[b, in]`, `upstream` the gradient with respect to the product, `[b, out]`.
        """
        return self._library.dlrm_kernel_gradient(x=inputs, upstream=upstream, slices=slices)

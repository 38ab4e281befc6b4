"""The numbers of workers that can share a batch's slices and keep the order of its sums; see `ordered_sums`. Imports no TensorFlow."""


def keeps_order(slices: int, batch_size: int, workers: int) -> bool:
    """Return whether N workers sum the slices' gradients in the order of one worker: each sums a whole subtree of the tree of additions."""
    return batch_size % slices == 0 and (workers == 1 or (slices % workers == 0 and _is_power_of_two(slices // workers)))


def same_bits(slices: int, batch_size: int) -> list[int]:
    """Return the numbers of workers whose trained weights are bit-identical."""
    able = {1} | {slices >> i for i in range(slices.bit_length()) if slices % (1 << i) == 0}
    return sorted(workers for workers in able if keeps_order(slices, batch_size, workers))


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0

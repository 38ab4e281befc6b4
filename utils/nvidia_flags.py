"""Flags of NVIDIA's application that change nothing about the result here: accepted, so that its commands work, with a warning."""

from utils.errors import UserError

LEGACY = {
    "use_mde_embeddings": "there is one embedding implementation",
    "concat_embedding": "lookups are fused where that is faster",
    "tfdata_debug": "the input pipeline does not use tf.data",
    "row_slice_threshold": "tables are cut by columns (--column_slice_threshold), not by rows",
    "data_parallel_input": "every worker reads the ids that its tables need",
    "synthetic_dataset_hotness": "every feature has one id a sample",
}


def is_given(name: str, value: str | None) -> bool:
    """Whether such a flag was given. Raises UserError where its value asks for what there is not."""
    if name == "synthetic_dataset_hotness" and value is not None and set(value.split(",")) != {"1"}:
        raise UserError(f"--synthetic_dataset_hotness {value}: expected 1 for every feature; several ids a sample are not supported")
    return value is not None

"""Flags of NVIDIA's application that change nothing about the result here: accepted, so that its commands work, with a warning."""

LEGACY = {
    "use_mde_embeddings": "there is one embedding implementation",
    "concat_embedding": "lookups are fused where that is faster",
    "tfdata_debug": "the input pipeline does not use tf.data",
    "row_slice_threshold": "tables are cut by columns (--column_slice_threshold), not by rows",
    "data_parallel_input": "every worker reads the ids that its tables need",
}

"""Reports on runs: TensorBoard's files, HTML pages, comparisons; from logs and manifests."""

"""What a run did: TensorBoard's files, HTML reports, comparisons; from logs and manifests."""

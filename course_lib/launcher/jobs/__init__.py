"""Jobs: under torchrun, on the nodes of a Slurm cluster, with ranks that share a GPU."""

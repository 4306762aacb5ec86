"""The operations in Triton, for a GPU: each has the signature of its twin in kernels.reference."""

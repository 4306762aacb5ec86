"""Arithmetic: tensors in, tensors out, no state. Each operation has a reference in plain torch."""

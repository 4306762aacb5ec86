"""The operations in plain torch: what every other implementation must agree with."""

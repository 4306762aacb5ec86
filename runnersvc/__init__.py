"""The runner: weights, KV buffer and page table of one device. It does what a plan says, or refuses
it.
"""

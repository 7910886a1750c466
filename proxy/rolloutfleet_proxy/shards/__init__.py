"""Tensors that the proxy keeps for others: a file each, found by a row of the store."""

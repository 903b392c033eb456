"""Placement of a graph of costed nodes on devices: pure functions over plain values."""

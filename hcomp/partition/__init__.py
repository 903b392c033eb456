"""Deciding where each part of a graph runs, and in what order: the plan."""

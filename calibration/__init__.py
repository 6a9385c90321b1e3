"""Kernels measured and plans executed: the only room of the house that knows torch."""

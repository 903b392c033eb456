"""Heavy operators with constant weights: packed forms that the schedules turn into fast kernels."""

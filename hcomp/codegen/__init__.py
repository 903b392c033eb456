"""From a region to kernels: a graph becomes a Relax module, and that an object and a VM file."""

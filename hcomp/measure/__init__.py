"""Measuring at compile time: this machine (`hcomp calibrate`), and the blocks of kernels (`hcomp compile --tune`).

Here kernels are both made and run, which no target and no part of the runtime does.
"""

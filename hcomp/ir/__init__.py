"""The graph that hcomp compiles: types, nodes, text form, verifier."""

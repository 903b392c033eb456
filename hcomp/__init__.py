"""hcomp: compile one model for several devices at once."""

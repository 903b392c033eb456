"""The simulated accelerator: README.md here is the machine, `device` runs its programs, `builder` makes them."""

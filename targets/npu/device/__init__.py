"""The run side of the NPU: the machine, its programs, and what executes and times them; numpy only."""

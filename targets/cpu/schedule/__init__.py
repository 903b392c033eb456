"""Schedules for the CPU target: `schedule_module` makes every kernel of a Relax module fast."""

from hcomp.targets.cpu.schedule.module import schedule_module

__all__ = ["schedule_module"]

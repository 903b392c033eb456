"""Every error hcomp raises on purpose: one class a stage, each with the command line's exit status."""


class HcompError(Exception):
    """The base of all errors of hcomp; its text is one line that a user can act on.

    `exit_status` is what the command line returns: 1 a failure of ours, 2 wrong usage or
    unreadable input, 3 refused by a policy.
    """

    exit_status = 1


class UsageError(HcompError):
    """An option, argument or name that hcomp does not know or that contradicts another."""

    exit_status = 2


class CaptureError(HcompError):
    """A model that cannot be read, or that no engine here can run."""

    exit_status = 2


class ParseError(HcompError):
    """Text (graph, plan, dimension expression) that does not read back; names line and column."""

    exit_status = 2


class InvariantError(HcompError):
    """A graph that breaks a named invariant: a fault of hcomp, shown with the annotated graph."""


class PassError(HcompError):
    """A pass that could not do its work; names the pass and the node."""


class PartitionError(HcompError):
    """A placement that does not exist, or a plan that does not fit the model or the machine."""

    exit_status = 2


class CodegenError(HcompError):
    """A region for which no kernels could be built; names the region and the node."""


class ArtifactError(HcompError):
    """A model.hcomp that is damaged, truncated, foreign, or made for another processor."""

    exit_status = 2


class RunError(HcompError):
    """Inputs that do not fit the program, or a region that failed while it ran."""

    exit_status = 2


class PolicyError(HcompError):
    """A result that was refused because the caller asked for it (`--strict`, a limit)."""

    exit_status = 3

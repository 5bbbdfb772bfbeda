"""Errors of the operator layer."""


class KernelUnavailableError(RuntimeError):
    """No implementation of an op for a kernel family.

    Args:
        op: the op's name, or ``"*"`` when the whole family is absent.
        family: the kernel family asked for.
        remedy: what would provide it.
    """

    def __init__(self, op: str, family: str, remedy: str) -> None:
        super().__init__(f"no kernel for op {op!r} on backend {family!r}: {remedy}")
        self.op = op
        self.family = family
        self.remedy = remedy

# SPDX-License-Identifier: Apache-2.0
"""The one exception of the library."""


class Error(RuntimeError):
    """Something went wrong; the message says place and value.

    code: "bad_input", "io", "infeasible", "unsupported", "peer" or "internal".
    exit_code: what the command `coterie` ends with for such an error.
    """

    def __init__(self, code, exit_code, message):
        super().__init__(message)
        self.code = code
        self.exit_code = exit_code

    def __reduce__(self):
        return Error, (self.code, self.exit_code, str(self))


EXIT_CODES = {"bad_input": 2, "io": 2, "infeasible": 3, "unsupported": 2, "peer": 4, "internal": 1}


def fail(code, message):
    """Raises Error(code, message)."""
    raise Error(code, EXIT_CODES[code], message)

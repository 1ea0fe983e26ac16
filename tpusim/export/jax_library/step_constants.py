"""The names that each exported step defines, and that the library's functions use.

Here they have no values: an exported file has its own in place of this import.
"""

from typing import Any

MESH: dict[str, int] = {}
SHAPES: Any = None
SPECS: Any = None
UPDATE_SPECS: Any = None
MATRICES: Any = None
MATRIX_SPECS: Any = None
BATCH_SHAPE: tuple[int, ...] = ()
BATCH_SPEC: Any = None
INPUTS: dict[str, tuple[tuple[int, ...], Any]] = {}
INPUT_SPECS: Any = None
STORED: Any = None
COMPUTE: Any = None
GATHERED: Any = None
REDUCED: Any = None
FORWARD: Any = None
BACKWARD: Any = None
FOR_WEIGHTS: Any = None
GRADIENTS: Any = None
ACCUMULATORS: Any = None
VOCAB: int = 0
ORDER: Any = None
FROZEN: tuple[str, ...] = ()
OPTIMIZER: Any = None
TOKENS_EACH: int = 0
CACHE: Any = None
CACHE_SPECS: Any = None
loss: Any = None
server_step: Any = None

"""Adam (arXiv 1412.6980) for a few arrays in numpy."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Arrays = dict[str, Floats]


@dataclass(slots=True)
class Adam:
    """Steps that lower a loss.

    Args:
        rate: of learning.
        decay: of the weights themselves, apart from the gradient (AdamW).
    """

    rate: float
    decay: float = 0.0
    first: Arrays = field(default_factory=dict)
    second: Arrays = field(default_factory=dict)
    steps: int = 0

    def step(self, weights: Arrays, gradients: Arrays) -> None:
        """Change `weights` in place."""
        self.steps += 1
        for name, gradient in gradients.items():
            m = self.first.setdefault(name, np.zeros_like(gradient))
            v = self.second.setdefault(name, np.zeros_like(gradient))
            m += 0.1 * (gradient - m)
            v += 0.001 * (gradient**2 - v)
            m_hat, v_hat = m / (1 - 0.9**self.steps), v / (1 - 0.999**self.steps)
            weights[name] -= self.rate * (m_hat / (np.sqrt(v_hat) + 1e-8) + self.decay * weights[name])

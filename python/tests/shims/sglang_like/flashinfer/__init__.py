"""FlashInfer's samplers, which SGLang's tests call by this name: this library's."""

import sys

from spec_ops import flashinfer as sampling

sys.modules["flashinfer.sampling"] = sampling

"""ONE tensor on disk: references, headers, file formats, dtypes."""

from .ref import TensorRef

__all__ = ["TensorRef"]

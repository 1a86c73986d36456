"""ONE tensor on disk: references, headers, file formats, dtypes."""

"""Numbers from two tensors, in one streaming pass (`kernel.measure`). The data (`measurement`,
`element_tolerance`, `catalogue`) need no torch."""

"""``BridgedCUDAGraph`` and ``enable()``: the library's face for code that captures by hand."""

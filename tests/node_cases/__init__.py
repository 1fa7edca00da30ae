"""ONNX's own node cases, run through the framework's kernels."""

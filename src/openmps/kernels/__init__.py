"""The kernels, one file per header of the framework; none of them imports another."""

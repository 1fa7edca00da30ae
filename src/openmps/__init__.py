"""Metal Performance Shaders' convolutional networks off the Mac: the same classes, numbers and weight files.

`import openmps as mps`, then help(mps.MPSCNNConvolution), as of every name; dir(mps) has all of them, docs/ the pages.
Machine      mtl_device, MTLDevice, MTLCommandQueue, MTLCommandBuffer, MPSCommandBuffer, MTLBuffer, MTLHeap
Images       MPSImage, MPSTemporaryImage, MPSImageBatch, MPSVector, MPSMatrix; states: MPSState, MPSNNGradientState
Convolution  MPSCNNConvolution, MPSCNNConvolutionTranspose, MPSCNNFullyConnected, MPSCNNBinaryConvolution
Weights      MPSCNNConvolutionDescriptor, MPSCNNConvolutionDataSource, TrainableConvolutionDataSource; MPSKeyedArchiver
Layers       MPSCNNPoolingMax, MPSNNSlice, MPSCNNNeuronReLU, MPSCNNSoftMax, MPSCNNDropout, MPSCNNBatchNormalization, …
Arithmetic   MPSCNNAdd, …; MPSNNReduceFeatureChannelsSum, MPSNNReshape, MPSNNPad; MPSMatrixMultiplication, …
Learning     a …Gradient of each kernel; MPSCNNLoss, MPSNNForwardLoss, MPSCNNLossDescriptor; MPSNNOptimizerAdam, …
Graphs       MPSNNGraph, MPSNNImageNode, MPSNNStateNode, MPSNNFilterNode, a …Node of each kernel; lint, conventions
Padding      MPSNNDefaultPadding, MPSNNPaddingMethod, ExplicitPadding; packages: formats, training, debug, pyobjc
"""

__version__ = "0.2.0"

TYPE_CHECKING = (
    False  # a type checker knows it by this name; an import of typing is time in which Ctrl-C is a traceback
)
if TYPE_CHECKING:
    from openmps.names import *  # noqa: F403
else:
    # The engine takes seconds to import: names are imported one by one, each when it is asked for.

    def __getattr__(name: str) -> object:
        from openmps.lazy import has, load, public_names

        if name == "__all__" and not _is_asked_by_pydoc():
            return public_names(__name__)
        if has(__name__, name):
            return load(__name__, name)
        from openmps.spellings import absent

        raise absent(name, public_names(__name__), lambda each: load(__name__, each))

    def _is_asked_by_pydoc() -> bool:
        # `help(openmps)` would print each class of `__all__` in full: 70,000 lines. Without it, the subjects above.
        from sys import _getframe

        return _getframe(2).f_globals.get("__name__") == "pydoc"

    def __dir__() -> list[str]:
        from openmps.lazy import attributes

        return attributes(__name__)

    del TYPE_CHECKING

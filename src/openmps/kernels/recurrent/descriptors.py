"""What recurrent layers are: their sizes, and where their weights come from (MPSRNNLayer.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self

from openmps.checks import Checked, NamedAttributes, flag, listed, number, one_of_two
from openmps.core.numbers import integer
from openmps.enumerated import member_of
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.convolution.data_source import MPSCNNConvolutionDataSource, check_data_source
from openmps.selectors import Factory, takes
from openmps.types import MPSCNNNeuronType, MPSRNNSequenceDirection

Source = MPSCNNConvolutionDataSource | None


class GateSources(NamedTuple):
    """The attributes of a descriptor that give the weights of one gate."""

    inputs: str
    """W, and with it the bias and the neuron of the gate."""
    states: str
    """U."""
    memories: str = ""
    """V, where the gate has such weights."""


def _size(who: str, argument: str, value: int) -> int:
    return integer(who, argument, value, 1)


def _source(who: str, argument: str, value: Source) -> Source:
    if value is not None:
        check_data_source(f"{who} {argument}", value)
    return value


def _power(who: str, argument: str, value: float) -> float:
    if number(who, argument, value) <= 0:
        raise MPSArgumentError(who, argument, "must be more than 0", value)
    return float(value)


def _weights(what: str) -> Checked[Source]:
    return Checked[Source](None, _source, f"{what} Default None.")


class MPSRNNDescriptor(NamedAttributes):
    """The base of descriptors of recurrent layers (MPSRNNLayer.h, macOS 10.13).

    Vectors are rows of matrices, or pixels of images. All sources of weights are those of convolutions, and are read
    when a layer is made; those of layers over matrices have kernels of one pixel. A source of input weights W gives the
    gate's bias and its neuron, too; what others say of them is not read. Where W is None it is 0, the bias is 0 and
    there is no neuron; other weights that are None are 0.

    Raises:
        MPSTypeError: An object of this base class is made, or a source has not the methods of one.
        MPSArgumentError: A number of channels is below 1.
    """

    _gates: ClassVar[Sequence[GateSources]] = ()
    """The gates in the order in which the mathematics has them."""

    input_feature_channels = Checked[int](1, _size, "Numbers of a vector of the source.")
    output_feature_channels = Checked[int](1, _size, "Numbers of a vector of the result and of the state.")
    use_layer_input_unit_transform_mode = Checked[bool](
        False,
        flag,
        "Whether gates get the source itself instead of W x; both have as many channels then. Default False.",
    )
    use_float32_weights = Checked[bool](
        False, flag, "Whether weights over matrices are float32; they are rounded to float16 else. Default False."
    )
    layer_sequence_direction = Checked[MPSRNNSequenceDirection](
        MPSRNNSequenceDirection.FORWARD,
        member_of(MPSRNNSequenceDirection),
        "The direction in which bidirectional encodes run the layer; others do not ask. Default FORWARD.",
    )

    @takes()
    def __init__(self, input_feature_channels: int, output_feature_channels: int) -> None:
        if not self._gates:
            rule = "makes no descriptor of this base class"
            raise MPSTypeError(type(self).__name__, "input_feature_channels", rule, None, "Make one of its subclasses")
        self.input_feature_channels = input_feature_channels
        self.output_feature_channels = output_feature_channels

    def copy(self) -> Self:
        """A descriptor of its own with the same values and the same sources."""
        twin = type(self).__new__(type(self))
        vars(twin).update(vars(self))
        return twin

    __copy__ = copy

    def __repr__(self) -> str:
        sizes = f"{self.input_feature_channels} to {self.output_feature_channels} channels"
        return f"<{type(self).__name__}: {sizes}, {self.layer_sequence_direction.name}>"


class MPSRNNSingleGateDescriptor(MPSRNNDescriptor):
    """A layer of one gate: ``h1 = g(W x + U h0 + b)`` (MPSRNNLayer.h, macOS 10.13)."""

    _gates = (GateSources("input_weights", "recurrent_weights"),)

    create_rnn_single_gate_descriptor = Factory(
        "createRNNSingleGateDescriptorWithInputFeatureChannels:outputFeatureChannels:"
    )
    input_weights = _weights("Source of W, of the bias and of the neuron g.")
    recurrent_weights = _weights("Source of U.")


class MPSGRUDescriptor(MPSRNNDescriptor):
    """A layer of gated recurrent units (MPSRNNLayer.h, macOS 10.13).

    With ``.`` a product number by number and p the `gate_pnorm_value`::

        z = gz(Wz x + Uz h0 + bz)              the input gate
        r = gr(Wr x + Ur h0 + br)              the recurrent gate
        h = gh(Wh x + Uh (r . h0) + Vh (z . h0) + bh)
        h1 = (1 - z^p)^(1/p) . h + z . h0      or flipped, (1 - z^p)^(1/p) . h0 + z . h

    The recurrent gate is applied before the product with Uh, where other libraries may do so after it. For p other than
    1 a z outside of 0 to 1, which no sigmoid gives, can make a result NaN.
    """

    _gates = (
        GateSources("input_gate_input_weights", "input_gate_recurrent_weights"),
        GateSources("recurrent_gate_input_weights", "recurrent_gate_recurrent_weights"),
        GateSources("output_gate_input_weights", "output_gate_recurrent_weights", "output_gate_input_gate_weights"),
    )

    create_gru_descriptor = Factory("createGRUDescriptorWithInputFeatureChannels:outputFeatureChannels:")
    input_gate_input_weights = _weights("Source of Wz, bz and the neuron gz.")
    input_gate_recurrent_weights = _weights("Source of Uz.")
    recurrent_gate_input_weights = _weights("Source of Wr, br and the neuron gr.")
    recurrent_gate_recurrent_weights = _weights("Source of Ur.")
    output_gate_input_weights = _weights("Source of Wh, bh and the neuron gh.")
    output_gate_recurrent_weights = _weights("Source of Uh.")
    output_gate_input_gate_weights = _weights("Source of Vh, of minimal gated units.")
    flip_output_gates = Checked[bool](False, flag, "Whether z lets the new state through. Default False.")

    gate_pnorm_value = Checked[float](1.0, _power, "p, more than 0. Default 1.")


class MPSLSTMDescriptor(MPSRNNDescriptor):
    """A layer of long short-term memory (MPSRNNLayer.h, macOS 10.13).

    With ``.`` a product number by number::

        I = gi(Wi x + Ui h0 + Vi c0 + bi)      F and C alike, of the forget and the cell gate
        c1 = F . c0 + I . C
        O = go(Wo x + Uo h0 + Vo c1 + bo)
        h1 = O . gh(c1)
    """

    _gates = tuple(
        GateSources(f"{gate}_gate_input_weights", f"{gate}_gate_recurrent_weights", f"{gate}_gate_memory_weights")
        for gate in ("input", "forget", "cell", "output")
    )

    create_lstm_descriptor = Factory("createLSTMDescriptorWithInputFeatureChannels:outputFeatureChannels:")
    input_gate_input_weights = _weights("Source of Wi, bi and the neuron gi.")
    input_gate_recurrent_weights = _weights("Source of Ui.")
    input_gate_memory_weights = _weights("Source of Vi.")
    forget_gate_input_weights = _weights("Source of Wf, bf and the neuron gf.")
    forget_gate_recurrent_weights = _weights("Source of Uf.")
    forget_gate_memory_weights = _weights("Source of Vf.")
    cell_gate_input_weights = _weights("Source of Wc, bc and the neuron gc.")
    cell_gate_recurrent_weights = _weights("Source of Uc.")
    cell_gate_memory_weights = _weights("Source of Vc.")
    output_gate_input_weights = _weights("Source of Wo, bo and the neuron go.")
    output_gate_recurrent_weights = _weights("Source of Uo.")
    output_gate_memory_weights = _weights("Source of Vo.")
    memory_weights_are_diagonal = Checked[bool](
        False, flag, "Whether each V is a vector, multiplied number by number. Default False."
    )
    cell_to_output_neuron_type = Checked[MPSCNNNeuronType](
        MPSCNNNeuronType.TANH, member_of(MPSCNNNeuronType), "The neuron gh. Default TANH."
    )
    cell_to_output_neuron_param_a = Checked[float](1.0, number, "Parameter a of gh. Default 1.")
    cell_to_output_neuron_param_b = Checked[float](1.0, number, "Parameter b of gh. Default 1.")
    cell_to_output_neuron_param_c = Checked[float](1.0, number, "Parameter c of gh. Default 1.")


def descriptors(who: str, descriptor: Any, several: Any) -> list[MPSRNNDescriptor]:
    """The layers of a stack, copied: one descriptor, or a list of them."""
    one_of_two(who, "rnn_descriptor", descriptor, "rnn_descriptors", several)
    given = [descriptor] if several is None else listed(who, "rnn_descriptors", several, "MPSRNNDescriptor")
    if not given:
        raise MPSArgumentError(who, "rnn_descriptors", "must hold at least one descriptor", "none")
    for each in given:
        if not isinstance(each, MPSRNNDescriptor):
            argument = "rnn_descriptor" if several is None else "rnn_descriptors"
            raise MPSTypeError(who, argument, "must be an MPSRNNDescriptor", type(each).__name__)
    return [each.copy() for each in given]

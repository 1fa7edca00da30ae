"""The steps of an encode that do not depend on what the operands are: bind a plan's function, and record it.

Every encode takes these steps, in this order: check the operands, look the plan up by the kernel's configuration and
the operands' shapes, allocate what is not given, bind the function's inputs and outputs, record a `Dispatch`, count
reads down. `ImageKernel` takes them for images, with windows, states and padding policies; `OperandKernel` for operands
of every kind, which a class lists as arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from openmps.checks import store
from openmps.core.kernel.configuration import Configuration, Configured
from openmps.core.kernel.plan import FunctionPlan
from openmps.core.lifetime import COMMAND_BUFFERS
from openmps.core.operand import View
from openmps.core.state.gradient import saved_by
from openmps.errors import MPSTypeError
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.metal.pending import Region, require_written
from openmps.ops.op import Function, Role
from openmps.runtime.binding import Binding, Number
from openmps.runtime.dispatch import Dispatch
from openmps.runtime.step_trace import StepTrace, UndeclaredError, check_numbers

_SOURCE, _SAVED, _BUFFER, _NUMBER = Role.SOURCE, Role.SAVED, Role.BUFFER, Role.NUMBER  # asked for by each encode


class EncodePath(Configured):
    """How the encodes of a kernel are bound and recorded.

    ``given`` is what an encode is given besides its operands: the states of an image kernel, the plan of others.
    """

    _device: MTLDevice
    _name: str | None

    # --- hooks that a kernel file fills in ----------------------------------------------------------------------------

    def _memory(self, name: str, given: Any, /) -> Binding:
        """Where the buffer that the function calls ``name`` is."""
        raise MPSTypeError(self.name, name, "is bound by no kernel", None, "This is a defect of the kernel")

    def _number(self, name: str, given: Any, /) -> float:
        """The number that the function calls ``name``, for this encode."""
        raise MPSTypeError(self.name, name, "is given by no kernel", None, "This is a defect of the kernel")

    # --- the steps ----------------------------------------------------------------------------------------------------

    def _interned_configuration(self) -> Configuration:
        """The properties as they stand; equal ones are the same object."""
        configuration = self._configuration
        if not configuration.is_interned:
            configuration = configuration.interned()
            store(self, "_configuration", configuration)
        return configuration

    def _require_written(self, plan: FunctionPlan, inputs: Sequence[View[Any]], given: Any) -> None:
        """Raise if a dropped command buffer was to write what is read, before anything takes note of the encode."""
        require_written(self.name, "encode", self._read(plan, inputs, given))

    def _read(self, plan: FunctionPlan, inputs: Sequence[View[Any]], given: Any) -> Iterator[Region]:
        """The memory that an encode reads: sources, states, parameters."""
        overwritten = set(plan.function.overwritten())
        for index, ((role, name), used) in enumerate(zip(plan.function.inputs, plan.used, strict=True)):
            if not used or index in overwritten:
                continue
            if role is _SOURCE:
                yield from inputs[int(name)].regions()
            elif role is _SAVED:
                yield from saved_by(given).regions()
            elif role is _BUFFER:
                yield from self._memory(name, given).regions()

    def _dispatch(
        self,
        command_buffer: CommandBuffer,
        plan: FunctionPlan,
        function: Function,
        inputs: tuple[View[Any], ...],
        output_bindings: tuple[Binding, ...],
        given: Any,
    ) -> None:
        """Bind the inputs of a plan's function, and record it. The numbers of the encode are asked for here."""
        if plan.is_plain:
            bound: tuple[Binding, ...] = inputs[: len(function.inputs)]
        else:
            if type(command_buffer) not in COMMAND_BUFFERS:
                if type(command_buffer) is StepTrace:  # its numbers hold for one encode alone
                    raise UndeclaredError(f"encode of {self.name}")
                check_numbers(command_buffer, self.name, function)
            bound = self._bindings(plan, inputs, given)
        command_buffer.record(self._name or self.name, Dispatch(function, bound, plan.used, output_bindings))

    def _bindings(self, plan: FunctionPlan, inputs: Sequence[View[Any]], given: Any) -> tuple[Binding, ...]:
        """What the inputs of a plan's function are bound to in this encode."""
        bound: list[Binding] = []
        for role, name in plan.function.inputs:
            if role is _SOURCE:
                bound.append(inputs[int(name)])
            elif role is _SAVED:
                bound.append(saved_by(given))
            elif role is _BUFFER:
                bound.append(self._memory(name, given))
            elif role is _NUMBER:
                bound.append(Number(self._number(name, given)))
            else:
                bound.append(plan.constants[int(name)].on(self._device.torch_device))
        return tuple(bound)

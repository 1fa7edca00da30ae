"""Every public name of `openmps.debug`; see `openmps.names`."""

from openmps.debug.captured.verdicts import (
    CaptureVerdict as CaptureVerdict,
    JudgedLayer as JudgedLayer,
    compare_capture as compare_capture,
)
from openmps.debug.closeness import assert_images_close as assert_images_close
from openmps.debug.comparing import (
    ComparedValue as ComparedValue,
    Comparison as Comparison,
    compare as compare,
)
from openmps.debug.files import load_trace as load_trace, save_trace as save_trace
from openmps.debug.golden import (
    Golden as Golden,
    GoldenCheck as GoldenCheck,
    GoldenReport as GoldenReport,
    GoldenResult as GoldenResult,
    check_golden as check_golden,
    load_golden as load_golden,
    make_golden as make_golden,
    save_golden as save_golden,
)
from openmps.debug.limits import MachineLimits as MachineLimits, machine_limits as machine_limits
from openmps.debug.page.saving import save_page as save_page
from openmps.debug.profiling import (
    Profile as Profile,
    ProfiledStep as ProfiledStep,
    profile as profile,
)
from openmps.debug.quantizing import (
    Quantization as Quantization,
    QuantizedLayer as QuantizedLayer,
    quantize as quantize,
)
from openmps.debug.torch_modules import trace_torch as trace_torch
from openmps.debug.watching import Watch as Watch, watch as watch
from openmps.formats.captures import (
    Capture as Capture,
    CapturedImage as CapturedImage,
    load_capture as load_capture,
    save_capture as save_capture,
)
from openmps.formats.quantization import QuantizedForm as QuantizedForm
from openmps.graph.run.trace import (
    TraceStatistics as TraceStatistics,
    Trace as Trace,
    TracedKind as TracedKind,
    TracedValue as TracedValue,
)

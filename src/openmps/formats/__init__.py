"""Bytes on disk: weights, their layouts, and files that are written whole or not at all."""

from openmps.formats.arrays import Array
from openmps.formats.atomic import write_atomic
from openmps.formats.layouts import (
    conv_transpose_to_ohwi,
    depthwise_to_hwcm,
    depthwise_to_oihw,
    fully_connected_to_linear,
    hwcm_to_depthwise,
    hwio_to_ohwi,
    linear_to_fully_connected,
    ohwi_to_conv_transpose,
    ohwi_to_hwio,
    ohwi_to_oihw,
    oihw_to_depthwise,
    oihw_to_ohwi,
)
from openmps.formats.weights import (
    dat_file_name,
    dat_file_names,
    load_dat,
    load_dat_files,
    load_safetensors,
    save_dat,
    save_dat_files,
    save_safetensors,
    split_name,
)

__all__ = [
    "Array",
    "conv_transpose_to_ohwi",
    "dat_file_name",
    "dat_file_names",
    "depthwise_to_hwcm",
    "depthwise_to_oihw",
    "fully_connected_to_linear",
    "hwcm_to_depthwise",
    "hwio_to_ohwi",
    "linear_to_fully_connected",
    "load_dat",
    "load_dat_files",
    "load_safetensors",
    "ohwi_to_conv_transpose",
    "ohwi_to_hwio",
    "ohwi_to_oihw",
    "oihw_to_depthwise",
    "oihw_to_ohwi",
    "save_dat",
    "save_dat_files",
    "save_safetensors",
    "split_name",
    "write_atomic",
]

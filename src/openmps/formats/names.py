"""Every public name of `openmps.formats`; see `openmps.names`."""

from openmps.formats import coreai as coreai, coreml as coreml, onnx as onnx, swift as swift
from openmps.formats.arrays import Array as Array
from openmps.formats.atomic import write_atomic as write_atomic
from openmps.formats.exchange.conventions import WeightLayout as WeightLayout
from openmps.formats.exchange.layers import (
    LayerKind as LayerKind,
    WeightLayer as WeightLayer,
    network_arrays as network_arrays,
    network_layers as network_layers,
)
from openmps.formats.exchange.mapping import export_weights as export_weights, import_weights as import_weights
from openmps.formats.exchange.raw import load_raw as load_raw, save_raw as save_raw
from openmps.formats.exchange.rows import WeightMapping as WeightMapping, WeightRow as WeightRow
from openmps.formats.exchange.tensors import load_tensors as load_tensors, save_tensors as save_tensors
from openmps.formats.layouts import (
    conv_transpose_to_ohwi as conv_transpose_to_ohwi,
    depthwise_to_hwcm as depthwise_to_hwcm,
    depthwise_to_oihw as depthwise_to_oihw,
    fully_connected_to_linear as fully_connected_to_linear,
    hwcm_to_depthwise as hwcm_to_depthwise,
    hwio_to_ohwi as hwio_to_ohwi,
    linear_to_fully_connected as linear_to_fully_connected,
    ohwi_to_conv_transpose as ohwi_to_conv_transpose,
    ohwi_to_hwio as ohwi_to_hwio,
    ohwi_to_oihw as ohwi_to_oihw,
    oihw_to_depthwise as oihw_to_depthwise,
    oihw_to_ohwi as oihw_to_ohwi,
)
from openmps.formats.weights import (
    dat_file_name as dat_file_name,
    dat_file_names as dat_file_names,
    load_dat as load_dat,
    load_dat_files as load_dat_files,
    load_safetensors as load_safetensors,
    save_dat as save_dat,
    save_dat_files as save_dat_files,
    save_safetensors as save_safetensors,
    split_name as split_name,
)

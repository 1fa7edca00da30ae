"""Every initializer of every node class, by the names of its arguments in order (MPSNNGraphNodes.h, iOS 12 and 16)."""

from __future__ import annotations

INITIALIZERS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        ("source_gradient source_image gradient_state",),
        (
            "MPSCNNBatchNormalizationGradientNode",
            "MPSCNNGroupNormalizationGradientNode",
            "MPSCNNInstanceNormalizationGradientNode",
            "MPSCNNLogSoftMaxGradientNode",
            "MPSCNNSoftMaxGradientNode",
            "MPSNNConcatenationGradientNode",
            "MPSNNPadGradientNode",
            "MPSNNReductionSpatialMeanGradientNode",
            "MPSNNReshapeGradientNode",
        ),
    ),
    (
        ("source data_source",),
        (
            "MPSCNNBatchNormalizationNode",
            "MPSCNNGroupNormalizationNode",
            "MPSCNNInstanceNormalizationNode",
        ),
    ),
    (
        (
            "source weights output_bias_terms output_scale_terms input_bias_terms input_scale_terms type flags",
            "source weights scale_value type flags",
        ),
        (
            "MPSCNNBinaryConvolutionNode",
            "MPSCNNBinaryFullyConnectedNode",
        ),
    ),
    (
        ("source_gradient source_image convolution_gradient_state weights",),
        (
            "MPSCNNConvolutionGradientNode",
            "MPSCNNFullyConnectedGradientNode",
        ),
    ),
    (
        ("source weights",),
        (
            "MPSCNNConvolutionNode",
            "MPSCNNFullyConnectedNode",
        ),
    ),
    (
        ("source_gradient source_image convolution_transpose_gradient_state weights",),
        ("MPSCNNConvolutionTransposeGradientNode",),
    ),
    (
        ("source convolution_gradient_state weights",),
        ("MPSCNNConvolutionTransposeNode",),
    ),
    (
        ("source_gradient source_image gradient_state kernel_size",),
        (
            "MPSCNNCrossChannelNormalizationGradientNode",
            "MPSCNNSpatialNormalizationGradientNode",
        ),
    ),
    (
        (
            "source",
            "source kernel_size",
        ),
        (
            "MPSCNNCrossChannelNormalizationNode",
            "MPSCNNLocalContrastNormalizationNode",
            "MPSCNNSpatialNormalizationNode",
        ),
    ),
    (
        (
            "source_gradient source_image gradient_state kernel_width kernel_height "
            "stride_in_pixels_x stride_in_pixels_y dilation_rate_x dilation_rate_y",
        ),
        ("MPSCNNDilatedPoolingMaxGradientNode",),
    ),
    (
        (
            "source filter_size",
            "source filter_size stride dilation_rate",
            "source kernel_width kernel_height stride_in_pixels_x stride_in_pixels_y dilation_rate_x dilation_rate_y",
        ),
        ("MPSCNNDilatedPoolingMaxNode",),
    ),
    (
        ("source_gradient source_image gradient_state keep_probability seed mask_stride_in_pixels",),
        ("MPSCNNDropoutGradientNode",),
    ),
    (
        (
            "source",
            "source keep_probability",
            "source keep_probability seed mask_stride_in_pixels",
        ),
        ("MPSCNNDropoutNode",),
    ),
    (
        ("source_gradient source_image gradient_state kernel_width kernel_height",),
        ("MPSCNNLocalContrastNormalizationGradientNode",),
    ),
    (
        ("source",),
        (
            "MPSCNNLogSoftMaxNode",
            "MPSCNNNeuronAbsoluteNode",
            "MPSCNNNeuronGeLUNode",
            "MPSCNNNeuronSigmoidNode",
            "MPSCNNNeuronSoftSignNode",
            "MPSCNNSoftMaxNode",
            "MPSNNInitialGradientNode",
            "MPSNNReductionColumnMaxNode",
            "MPSNNReductionColumnMeanNode",
            "MPSNNReductionColumnMinNode",
            "MPSNNReductionColumnSumNode",
            "MPSNNReductionFeatureChannelsArgumentMaxNode",
            "MPSNNReductionFeatureChannelsArgumentMinNode",
            "MPSNNReductionFeatureChannelsMaxNode",
            "MPSNNReductionFeatureChannelsMeanNode",
            "MPSNNReductionFeatureChannelsMinNode",
            "MPSNNReductionFeatureChannelsSumNode",
            "MPSNNReductionRowMaxNode",
            "MPSNNReductionRowMeanNode",
            "MPSNNReductionRowMinNode",
            "MPSNNReductionRowSumNode",
            "MPSNNReductionSpatialMeanNode",
        ),
    ),
    (
        ("source loss_descriptor",),
        (
            "MPSCNNLossNode",
            "MPSCNNYOLOLossNode",
        ),
    ),
    (
        (
            "source",
            "source a",
        ),
        (
            "MPSCNNNeuronELUNode",
            "MPSCNNNeuronReLUNode",
        ),
    ),
    (
        (
            "source",
            "source a b c",
        ),
        (
            "MPSCNNNeuronExponentialNode",
            "MPSCNNNeuronLogarithmNode",
            "MPSCNNNeuronPowerNode",
        ),
    ),
    (
        ("source_gradient source_image gradient_state descriptor",),
        ("MPSCNNNeuronGradientNode",),
    ),
    (
        (
            "source",
            "source a b",
        ),
        (
            "MPSCNNNeuronHardSigmoidNode",
            "MPSCNNNeuronLinearNode",
            "MPSCNNNeuronReLUNNode",
            "MPSCNNNeuronSoftPlusNode",
            "MPSCNNNeuronTanHNode",
        ),
    ),
    (
        ("source descriptor",),
        ("MPSCNNNeuronNode",),
    ),
    (
        ("source a_data",),
        ("MPSCNNNeuronPReLUNode",),
    ),
    (
        (
            "source_gradient source_image gradient_state kernel_width kernel_height "
            "stride_in_pixels_x stride_in_pixels_y padding_policy",
        ),
        (
            "MPSCNNPoolingAverageGradientNode",
            "MPSCNNPoolingL2NormGradientNode",
            "MPSCNNPoolingMaxGradientNode",
        ),
    ),
    (
        (
            "source filter_size",
            "source filter_size stride",
            "source kernel_width kernel_height stride_in_pixels_x stride_in_pixels_y",
        ),
        (
            "MPSCNNPoolingAverageNode",
            "MPSCNNPoolingL2NormNode",
            "MPSCNNPoolingMaxNode",
        ),
    ),
    (
        ("source_gradient source_image gradient_state scale_factor_x scale_factor_y",),
        (
            "MPSCNNUpsamplingBilinearGradientNode",
            "MPSCNNUpsamplingNearestGradientNode",
        ),
    ),
    (
        (
            "source integer_scale_factor_x integer_scale_factor_y",
            "source integer_scale_factor_x integer_scale_factor_y align_corners",
        ),
        ("MPSCNNUpsamplingBilinearNode",),
    ),
    (
        ("source integer_scale_factor_x integer_scale_factor_y",),
        ("MPSCNNUpsamplingNearestNode",),
    ),
    (
        (
            "gradient_images forward_filter is_secondary_source_filter",
            "source_gradient source_image gradient_state is_secondary_source_filter",
        ),
        (
            "MPSNNAdditionGradientNode",
            "MPSNNMultiplicationGradientNode",
            "MPSNNSubtractionGradientNode",
        ),
    ),
    (
        (
            "left_source right_source",
            "sources",
        ),
        (
            "MPSNNAdditionNode",
            "MPSNNComparisonNode",
            "MPSNNDivisionNode",
            "MPSNNMultiplicationNode",
            "MPSNNSubtractionNode",
        ),
    ),
    (
        (
            "source output_size",
            "source transform_provider output_size",
        ),
        (
            "MPSNNBilinearScaleNode",
            "MPSNNLanczosScaleNode",
        ),
    ),
    (
        ("sources",),
        ("MPSNNConcatenationNode",),
    ),
    (
        (
            "source labels loss_descriptor",
            "source labels weights loss_descriptor",
            "sources loss_descriptor",
        ),
        ("MPSNNForwardLossNode",),
    ),
    (
        (
            "source_gradient source_image gradient_state",
            "source_gradient source_image gradient_state alpha",
        ),
        ("MPSNNGramMatrixCalculationGradientNode",),
    ),
    (
        (
            "source",
            "source alpha",
        ),
        ("MPSNNGramMatrixCalculationNode",),
    ),
    (
        (
            "source_gradient source_image labels gradient_state loss_descriptor is_labels_gradient_filter",
            "source_gradient source_image labels weights gradient_state loss_descriptor is_labels_gradient_filter",
            "sources gradient_state loss_descriptor is_labels_gradient_filter",
        ),
        ("MPSNNLossGradientNode",),
    ),
    (
        ("source padding_size_before padding_size_after edge_mode",),
        ("MPSNNPadNode",),
    ),
    (
        ("source result_width result_height result_feature_channels",),
        ("MPSNNReshapeNode",),
    ),
)
"""Forms, and the classes that have them."""

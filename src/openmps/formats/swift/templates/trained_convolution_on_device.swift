  @objc(updateWithCommandBuffer:gradientState:sourceState:)
  public func update(
    with commandBuffer: MTLCommandBuffer, gradientState: MPSCNNConvolutionGradientState,
    sourceState: MPSCNNConvolutionWeightsAndBiasesState
  ) -> MPSCNNConvolutionWeightsAndBiasesState? {
    let result = MPSCNNConvolutionWeightsAndBiasesState(weights: weightBuffer, biases: biasBuffer)
    ENCODE
    return result
  }

  @objc(updateWithGradientState:sourceState:)
  public func update(
    with gradientState: MPSCNNConvolutionGradientState,
    sourceState: MPSCNNConvolutionWeightsAndBiasesState
  ) -> Bool {
    rule.begin()
    rule.update(0, weightBuffer, gradientState.gradientForWeights)
    if let biases = biasBuffer { rule.update(1, biases, gradientState.gradientForBiases) }
    return true
  }

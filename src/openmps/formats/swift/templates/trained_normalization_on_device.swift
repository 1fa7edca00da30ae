  @objc(updateGammaAndBetaWithCommandBuffer:batchNormalizationState:)
  public func updateGammaAndBeta(
    with commandBuffer: MTLCommandBuffer, batchNormalizationState: MPSCNNBatchNormalizationState
  ) -> MPSCNNNormalizationGammaAndBetaState? {
    let result = MPSCNNNormalizationGammaAndBetaState(gamma: rows[0], beta: rows[1])
    ENCODE
    return result
  }

  @objc(updateMeanAndVarianceWithCommandBuffer:batchNormalizationState:)
  public func updateMeanAndVariance(
    with commandBuffer: MTLCommandBuffer, batchNormalizationState: MPSCNNBatchNormalizationState
  ) -> MPSCNNNormalizationMeanAndVarianceState? {
    guard let mean = batchNormalizationState.mean(),
      let variance = batchNormalizationState.variance()
    else { return nil }
    average(commandBuffer, mean, rows[2], 1)
    average(commandBuffer, variance, rows[3], varianceFactor)
    return MPSCNNNormalizationMeanAndVarianceState(mean: rows[2], variance: rows[3])
  }

  /// running += momentum (factor found - running), as a descent.
  private func average(
    _ commandBuffer: MTLCommandBuffer, _ found: MTLBuffer, _ running: MTLBuffer, _ factor: Float
  ) {
    let descriptor = MPSNNOptimizerDescriptor(
      learningRate: -momentum, gradientRescale: factor, regularizationType: .L2,
      regularizationScale: -1
    )
    let descent = MPSNNOptimizerStochasticGradientDescent(
      device: commandBuffer.device, momentumScale: 0, useNestrovMomentum: false,
      optimizerDescriptor: descriptor
    )
    let length = MPSVectorDescriptor(length: channels, dataType: .float32)
    let values = MPSVector(buffer: running, descriptor: length)
    descent.encode(
      commandBuffer: commandBuffer,
      inputGradientVector: MPSVector(buffer: found, descriptor: length),
      inputValuesVector: values, inputMomentumVector: nil, resultValuesVector: values
    )
  }

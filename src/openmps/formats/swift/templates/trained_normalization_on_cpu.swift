  @objc(updateGammaAndBetaWithBatchNormalizationState:)
  public func updateGammaAndBeta(
    with batchNormalizationState: MPSCNNBatchNormalizationState
  ) -> Bool {
    guard let gamma = batchNormalizationState.gradientForGamma(),
      let beta = batchNormalizationState.gradientForBeta()
    else { return false }
    rule.begin()
    rule.update(0, rows[0], gamma)
    rule.update(1, rows[1], beta)
    return true
  }

  @objc(updateMeanAndVarianceWithBatchNormalizationState:)
  public func updateMeanAndVariance(
    with batchNormalizationState: MPSCNNBatchNormalizationState
  ) -> Bool {
    guard let mean = batchNormalizationState.mean(),
      let variance = batchNormalizationState.variance()
    else { return false }
    for (place, found, factor) in [(2, mean, Float(1)), (3, variance, varianceFactor)] {
      let running = numbers(place)
      let new = found.contents().assumingMemoryBound(to: Float.self)
      for index in 0..<channels {
        running[index] += momentum * (factor * new[index] - running[index])
      }
    }
    return true
  }

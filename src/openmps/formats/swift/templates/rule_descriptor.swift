    let descriptor = MPSNNOptimizerDescriptor(
      learningRate: LEARNING_RATE,
      gradientRescale: RESCALE,
      applyGradientClipping: CLIPPING,
      gradientClipMax: CLIP_MAX,
      gradientClipMin: CLIP_MIN,
      regularizationType: REGULARIZATION,
      regularizationScale: DECAY
    )

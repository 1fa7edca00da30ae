  /// Begin an update on the CPU.
  func begin() {
    step += 1
  }

  /// One step on the CPU of the numbers at a place.
  func update(_ place: Int, _ values: MTLBuffer, _ gradients: MTLBuffer) {
    let value = values.contents().assumingMemoryBound(to: Float.self)
    let gradient = gradients.contents().assumingMemoryBound(to: Float.self)
BEFORE    for index in 0..<values.length / 4 {
      var g = gradient[index]
      if CLIPPING { g = min(max(g, CLIP_MIN), CLIP_MAX) }
      g *= RESCALE
REGULARIZEDNUMBERS    }
  }

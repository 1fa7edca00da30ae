  public func biasTerms() -> UnsafeMutablePointer<Float>? {
    guard biasCount > 0 else { return nil }
    return (weights() + biasOffset).bindMemory(to: Float.self, capacity: biasCount)
  }

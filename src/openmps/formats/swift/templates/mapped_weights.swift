  public func descriptor() -> MPSCNNConvolutionDescriptor {
    return shape
  }

  public func weights() -> UnsafeMutableRawPointer {
    return UnsafeMutableRawPointer(mutating: contents.bytes)  // which the framework only reads
  }

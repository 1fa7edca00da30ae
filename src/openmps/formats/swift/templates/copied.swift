  public func copy(with zone: NSZone? = nil) -> Any {
    return self
  }

  @objc(copyWithZone:device:)
  public func copy(with zone: NSZone?, device: MTLDevice?) -> Self {
    return self
  }

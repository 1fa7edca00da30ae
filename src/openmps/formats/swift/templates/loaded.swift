  public func load() -> Bool {
    return true
  }

  public func purge() {
  }

  public func label() -> String? {
    return name
  }
